"""The generalisation gap of large batches, measured: a small network on few digits, a small transformer on little text.

    python studies/generalisation_gap.py                    # until all is measured; writes studies/results/...json
    python studies/generalisation_gap.py --budget 100       # stop after 100 s; call again to go on where it stopped

Every method sees the same number of epochs (but for "8 times the epochs"), so a batch k times as large takes 1/k of the
steps.
Digits: 200 training images, a convolutional net with batch norm, SGD with momentum. Text: 16 thousand bytes of Python's
manual, a transformer, AdamW without decay. All rates fall to zero by a cosine; a warm-up takes the first tenth of the
steps.

1. Tuning. On seeds and samples of its own, the rate of each optimizer is chosen from a grid by its validation loss: at
   the small batch (the rules start from that one) and at the large batch, there with a warm-up and, for the task's own
   optimizer, without one.
2. Measuring. Each seed draws other training samples, other first weights and another order. All methods of one seed
   share samples and weights, so differences are taken within a seed. The test set is used here only.

The results file holds every single run, the arguments, the machine, the date and the versions. It is written after
each run, all of it or nothing, and a run that is in it is not repeated.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtcourse import data
from dtcourse.course import results_file
from dtcourse.course.results_file import key
from dtcourse.large_batch import LAMB, LARS, GradualWarmup, linear_scaling, square_root_scaling
from dtcourse.models import ConvNet, Transformer, TransformerConfig

RESULTS = Path(__file__).parent / "results" / "generalisation_gap.json"
FORMAT = 1
GRID = 10**0.5  # neighbouring rates of a grid differ by this factor
TUNING_SEED = 1000  # tuning's seeds start here


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on; a results file is continued only with the same ones (seeds may grow)."""

    samples: int = 200  # digits to train on
    digit_epochs: int = 40
    tokens: int = 16_384  # bytes of text to train on
    text_epochs: int = 6
    width: int = 48  # of the transformer; the ConvNet has 16 and 32 channels
    tuning_seeds: int = 8


@dataclass(frozen=True)
class Method:
    """How a large batch is trained. rule: of the rate; longer: as many steps as the small batch takes."""

    name: str
    rule: str  # "same", "square root", "linear" or "tuned"
    optimizer: str = ""  # "" is the task's own: SGD for digits, Adam for text
    warmup: bool = True
    ghost: bool = False  # batch norm over groups of the small batch's size
    noise: bool = False  # each sample's loss times a random weight with mean 1 and variance k - 1
    longer: int = 1  # times the epochs


SMALL = Method("small batch", "tuned")
SWEEP = [
    Method("same learning rate", "same"),
    Method("square-root rule", "square root"),
    Method("linear rule", "linear"),
]
REPAIRS = {
    "digits": [
        Method("linear rule, no warm-up", "linear", warmup=False),
        Method("square-root rule, no warm-up", "square root", warmup=False),
        Method("learning rate tuned anew", "tuned"),
        Method("learning rate tuned anew, no warm-up", "tuned", warmup=False),
        Method("Adam, tuned", "tuned", "Adam"),
        Method("LARS, tuned", "tuned", "LARS"),
        Method("LAMB, tuned", "tuned", "LAMB"),
        Method("square-root rule, ghost batch norm", "square root", ghost=True),
        Method("square-root rule, gradient noise", "square root", noise=True),
        Method("square-root rule, 8 times the epochs", "square root", longer=8),
    ],
    "text": [
        Method("linear rule, no warm-up", "linear", warmup=False),
        Method("square-root rule, no warm-up", "square root", warmup=False),
        Method("learning rate tuned anew", "tuned"),
        Method("learning rate tuned anew, no warm-up", "tuned", warmup=False),
        Method("LAMB, tuned", "tuned", "LAMB"),
        Method("square-root rule, 8 times the epochs", "square root", longer=8),
    ],
}
OWN = {"digits": "SGD", "text": "Adam"}
SMALLEST = {"digits": 5, "text": 4}
FACTORS = {"digits": (2, 5, 10, 20, 40), "text": (2, 8, 32)}
GRIDS = {  # the middle of each optimizer's grid, and how many rates on either side of it
    "SGD": (0.03, 3),
    "LARS": (0.3, 2),
    "LAMB": (0.1, 2),
    "Adam": (0.01, 3),
}


class GhostBatchNorm(nn.BatchNorm2d):
    """Batch norm over groups of `ghost` samples, as ranks without SyncBatchNorm have it (Hoffer et al., 1705.08741)."""

    ghost = 10

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(x_BCHW)
        return torch.cat([super(GhostBatchNorm, self).forward(x) for x in x_BCHW.split(self.ghost)])


@dataclass
class Task:
    """Samples to train on, to choose rates by, and to test on; a model, and its loss by sample."""

    train: tuple[torch.Tensor, torch.Tensor]
    validation: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]
    model: nn.Module
    epochs: int

    def losses(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of each sample: for text, the mean over its tokens."""
        losses = nn.functional.cross_entropy(self.model(x).movedim(-1, 1), y, reduction="none")
        return losses.reshape(len(y), -1).mean(1)

    @torch.no_grad()
    def score(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        """Mean loss and share of right answers."""
        self.model.eval()
        right = (self.model(x).argmax(-1) == y).float().mean().item()
        return {"loss": self.losses(x, y).mean().item(), "accuracy": right}


def digits(settings: Settings, seed: int) -> Task:
    """The training images differ from seed to seed, the 359 test images do not."""
    pool, test = data.digits("train"), data.digits("test")
    order = torch.randperm(len(pool.labels), generator=torch.Generator().manual_seed(seed))
    own, rest = order[: settings.samples], order[settings.samples :]
    return Task(
        (pool.images[own], pool.labels[own]),
        (pool.images[rest], pool.labels[rest]),
        (test.images, test.labels),
        ConvNet((16, 32), seed=seed),
        settings.digit_epochs,
    )


def text(settings: Settings, seed: int) -> Task:
    """The passage differs from seed to seed; it is validated on another passage and tested on the manual's last
    tenth.
    """
    length = 32
    pool = data.text(split="train", length=length).tokens
    test = data.text(split="test", length=length).tokens
    start = int(
        torch.randint(
            len(pool) - settings.tokens - 1, (1,), generator=torch.Generator().manual_seed(seed)
        )
    )
    before, after = pool[:start], pool[start + settings.tokens + 1 :]
    config = TransformerConfig(
        vocab=256, d_model=settings.width, n_layers=2, n_heads=4, max_length=length
    )
    return Task(
        _blocks(pool[start:], length, settings.tokens // length),
        _blocks(before if len(before) > len(after) else after, length, 300),
        _blocks(test, length, 400),
        Transformer(config, seed=seed),
        settings.text_epochs,
    )


def _blocks(tokens: torch.Tensor, length: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(count, length) tokens and, beside them, those that follow, from the start of `tokens`."""
    count = min(count, (len(tokens) - 1) // length)
    tokens = tokens[: count * length + 1].long()
    return tokens[:-1].view(count, length), tokens[1:].view(count, length)


TASKS: dict[str, Callable[[Settings, int], Task]] = {"digits": digits, "text": text}


def make_optimizer(name: str, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """SGD and LARS with momentum 0.9, Adam and LAMB with PyTorch's betas; no weight decay."""
    p = model.parameters()
    if name == "SGD":
        return torch.optim.SGD(p, lr=lr, momentum=0.9)
    # biases and batch norm take lr itself: trust says how the others stand to them
    if name == "LARS":
        return LARS(p, lr=lr, momentum=0.9, trust=0.01)
    return LAMB(p, lr=lr) if name == "LAMB" else torch.optim.AdamW(p, lr=lr, weight_decay=0.0)


def train(
    task: Task, optimizer: torch.optim.Optimizer, batch: int, method: Method, small: int, seed: int
) -> int:
    """Trains task.model; returns the steps taken. Stops where the loss is no number any more."""
    (x, y), k = task.train, batch / small
    shuffle, weights = (torch.Generator().manual_seed(seed + extra) for extra in (1, 2))
    steps_an_epoch = len(x) // batch
    steps = task.epochs * method.longer * steps_an_epoch
    warm = max(1, steps // 10) if method.warmup else 0
    schedule: Any = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, T_max=max(1, steps - warm)
    )
    if warm:
        schedule = GradualWarmup(optimizer, warm, start_factor=1 / k, after=schedule)
    if method.ghost:
        for module in task.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.__class__, module.ghost = GhostBatchNorm, small
    task.model.train()
    order = torch.empty(0, dtype=torch.long)
    for step in range(steps):
        if step % steps_an_epoch == 0:
            order = torch.randperm(len(x), generator=shuffle)
        start = step % steps_an_epoch * batch
        mine = order[start : start + batch]
        losses = task.losses(x[mine], y[mine])
        if method.noise:
            losses = losses * (1 + (k - 1) ** 0.5 * torch.randn(batch, generator=weights))
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        schedule.step()
        if not math.isfinite(losses.detach().sum().item()):
            return step + 1
    return steps


def measure(
    settings: Settings, name: str, method: Method, batch: int, small: int, lr: float, seed: int
) -> dict[str, Any]:
    """One training run, and what it reached. A loss that is no number becomes null, and `diverged` true."""
    start = time.perf_counter()
    task = TASKS[name](settings, seed)
    optimizer = make_optimizer(method.optimizer or OWN[name], task.model, lr)
    steps = train(task, optimizer, batch, method, small, seed)
    run: dict[str, Any] = {"lr": lr, "steps": steps}
    parts = ("train", "validation") if seed >= TUNING_SEED else ("train", "test")
    for part in parts:
        for quantity, value in task.score(*getattr(task, part)).items():
            run[f"{part}_{quantity}"] = round(value, 5) if math.isfinite(value) else None
    run["diverged"] = any(value is None for value in run.values())
    return run | {"seconds": round(time.perf_counter() - start, 2)}


def batches(name: str, settings: Settings) -> tuple[int, list[int]]:
    """The small batch, and the larger ones that the samples allow."""
    samples = settings.samples if name == "digits" else settings.tokens // 32
    small = SMALLEST[name]
    large = [small * k for k in FACTORS[name] if small * k <= samples]
    if not large:
        raise ValueError(
            f"{name}: {samples} samples hold no batch of {small * FACTORS[name][0]}; take more of them"
        )
    return small, large


def grid(optimizer: str) -> list[float]:
    """The rates that are tried."""
    middle, sides = GRIDS[optimizer]
    return [float(f"{middle * GRID**i:.2g}") for i in range(-sides, sides + 1)]


def tuning(warmup: bool) -> str:
    """How tuning's runs are named: a method without a warm-up has a learning rate of its own."""
    return "tuning" if warmup else "tuning, no warm-up"


def tuned(
    results: dict[str, Any], name: str, optimizer: str, batch: int, warmup: bool = True
) -> float:
    """The rate with the lowest validation loss, averaged over the tuning seeds; one that diverged does not count."""
    settings, means = results["settings"], {}
    for lr in grid(optimizer):
        runs = [
            results["runs"][key(tuning(warmup), name, optimizer, batch, lr, TUNING_SEED + i)]
            for i in range(settings["tuning_seeds"])
        ]
        if not any(run["diverged"] for run in runs):
            means[lr] = statistics.mean(run["validation_loss"] for run in runs)
    if not means:
        raise ValueError(f"{name}: {optimizer} diverges at every rate of {grid(optimizer)}")
    return min(means, key=means.__getitem__)


def rate(results: dict[str, Any], name: str, method: Method, batch: int) -> float:
    """The learning rate of a method at a batch: by its rule, from the small batch's, or tuned."""
    if method.rule == "tuned":
        return tuned(results, name, method.optimizer or OWN[name], batch, method.warmup)
    small = SMALLEST[name]
    base = tuned(results, name, OWN[name], small)
    rules = {"linear": linear_scaling, "square root": square_root_scaling}
    return rules[method.rule](base, small, batch) if method.rule in rules else base


def jobs(
    settings: Settings, names: list[str], seeds: int, results: dict[str, Any]
) -> Iterator[tuple[str, float, Callable[[], dict[str, Any]]]]:
    """(key, rate, run) of everything, in order: tuning first, then all methods seed by seed."""

    def job(
        name: str, method: Method, batch: int, lr: float, seed: int
    ) -> Callable[[], dict[str, Any]]:
        return lambda: measure(settings, name, method, batch, batches(name, settings)[0], lr, seed)

    for name in names:
        small, large = batches(name, settings)
        large_ones = dict.fromkeys(
            (m.optimizer or OWN[name], large[-1], m.warmup)
            for m in REPAIRS[name]
            if m.rule == "tuned"
        )
        for optimizer, batch, warmup in [(OWN[name], small, True), *large_ones]:
            method = Method("tuning", "tuned", optimizer, warmup)
            for lr in grid(optimizer):
                for seed in range(TUNING_SEED, TUNING_SEED + settings.tuning_seeds):
                    run = job(name, method, batch, lr, seed)
                    yield key(tuning(warmup), name, optimizer, batch, lr, seed), lr, run
    for seed in range(seeds):
        for name in names:
            small, large = batches(name, settings)
            todo = [(SMALL, small)] + [(m, b) for b in large for m in SWEEP]
            for method, batch in todo + [(m, large[-1]) for m in REPAIRS[name]]:
                lr = rate(results, name, method, batch)
                yield key(name, method.name, batch, seed), lr, job(name, method, batch, lr, seed)


def load(path: Path, settings: Settings) -> dict[str, Any]:
    """The results so far. ValueError where the file was made with other settings, or in another format."""
    what = (__doc__ or "").split("\n", 1)[0]
    return results_file.load(path, what, format=FORMAT, settings=asdict(settings))


def study(
    path: Path, settings: Settings, names: list[str], seeds: int, budget: float | None = None
) -> bool:
    """Runs what is missing in the file at `path`; True if nothing is missing any more."""
    torch.set_num_threads(1)
    results, start = load(path, settings), time.monotonic()
    for name, lr, run in jobs(settings, names, seeds, results):
        # another grid may have chosen another rate
        if results["runs"].get(name, {}).get("lr") == lr:
            continue
        if budget is not None and time.monotonic() - start > budget:
            return False
        results["runs"][name] = run()
        results_file.save(results, path, seeds)
    return True


def summary(results: dict[str, Any], name: str) -> Iterator[str]:
    """A line a method and batch: median test accuracy or loss,
    and its difference from the small batch within a seed.
    """
    metric = "test_accuracy" if name == "digits" else "test_loss"
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for parts, run in ((k.split(" | "), r) for k, r in results["runs"].items()):
        if parts[0] == name:
            found.setdefault((parts[1], parts[2]), {})[parts[3]] = run
    base = next(runs for (method, _), runs in found.items() if method == SMALL.name)
    for (method, batch), runs in found.items():
        shared = [
            s for s in runs if s in base and not runs[s]["diverged"] and not base[s]["diverged"]
        ]
        if not shared:
            yield f"{name:7s}{method:38s}{batch:>5s}  diverged on all {len(runs)} seeds"
            continue
        values = [runs[s][metric] for s in shared]
        apart = [runs[s][metric] - base[s][metric] for s in shared]
        error = statistics.stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")
        yield (
            f"{name:7s}{method:38s}{batch:>5s}  lr {runs[shared[0]]['lr']:<8.3g} steps {runs[shared[0]]['steps']:<5d} "
            f"train loss {statistics.mean(runs[s]['train_loss'] for s in shared):.3f}  "
            f"{metric} {statistics.median(values):.3f}  difference {statistics.mean(apart):+.4f} +- {error:.4f}"
            + (f"  ({len(runs) - len(shared)} diverged)" if len(shared) < len(runs) else "")
        )


def main(arguments: list[str] | None = None) -> None:
    """Measures, and prints a line a method."""
    parser = results_file.parser(__doc__, RESULTS, Settings())
    parser.add_argument("--tasks", nargs="+", choices=sorted(TASKS), default=sorted(TASKS))
    options = parser.parse_args(arguments)
    settings = results_file.chosen(options, Settings())
    done = study(options.out, settings, options.tasks, options.seeds, options.budget)
    results = load(options.out, settings)
    for name in options.tasks if any(not k.startswith("tuning") for k in results["runs"]) else []:
        print(*summary(results, name), sep="\n")
    print(results_file.how_far(results, done))


if __name__ == "__main__":
    main()
