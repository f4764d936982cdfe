"""Steps to a loss against batch: SGD, Nesterov, Adam, LARS and LAMB, each with its best rate, and by the rules.

    python studies/steps_to_loss.py                    # until all is measured; writes studies/results/...json
    python studies/steps_to_loss.py --budget 100       # stop after 100 s; call again to go on where it stopped

A network with one hidden layer on the digits. "SGD" has no momentum, "Nesterov" is SGD with Nesterov momentum. A run
ends when the loss over all training images is below the target; it is looked at when the steps have grown by a
twentieth. The rate is constant: a rule changes nothing else.

1. Tuning. On seeds of its own, each optimizer's rate is chosen for each batch: the one that misses the target on the
   fewest seeds, and of those the one that needs the fewest steps.
2. Measuring. Each seed has its own first weights and its own order; all runs of a seed share the weights. Beside the
   best rate, each larger batch gets the rate that a rule makes of a smaller batch's best one: of the base's, and of
   the smallest batch's. One of the rules is to keep the rate: the control that changes nothing.
3. The noise scale tr(Sigma) / |G|^2, from the gradient of every sample, on the way of SGD at the largest batch and at
   the smallest.

The results file holds every single run, the arguments, the machine, the date and the versions.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtcourse import data
from dtcourse.course import results_file
from dtcourse.course.results_file import Job, key
from dtcourse.large_batch import LAMB, LARS, linear_scaling, square_root_scaling
from dtcourse.models import MLP

RESULTS = Path(__file__).parent / "results" / "steps_to_loss.json"
FORMAT = 1
TUNING_SEED = 1000  # tuning's seeds start here
# Each optimizer's rates: the lowest, and how many times it is doubled.
GRIDS = {
    "SGD": (0.02, 8),
    "Adam": (0.00025, 8),
    "Nesterov": (0.005, 8),
    "LARS": (0.0625, 8),
    "LAMB": (0.001, 7),
}
SWEPT = ("SGD", "Adam")  # at every batch; the others at the smallest and the largest


def keep(base_lr: float, base_batch: int, batch: int) -> float:
    """The rule that changes nothing."""
    return base_lr


RULES = {"keep": keep, "linear": linear_scaling, "square root": square_root_scaling}


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on; a results file is continued only with the same ones (seeds may grow)."""

    target: float = 0.2  # training loss at which a run ends
    smallest: int = 4
    largest: int = 1024
    base: int = 16  # the batch from whose best rate the rules start
    most: int = 1000  # steps after which a run is given up
    tuning_seeds: int = 8


def batches(settings: Settings) -> list[int]:
    """Doubled from the smallest to the largest."""
    doublings = int(math.log2(settings.largest / settings.smallest))
    return [settings.smallest << i for i in range(doublings + 1)]


def grid(optimizer: str) -> list[float]:
    """The rates that are tried."""
    lowest, doublings = GRIDS[optimizer]
    return [lowest * 2**i for i in range(doublings + 1)]


def bases(settings: Settings) -> dict[int, str]:
    """The batches from whose best rate the rules start, and how a rule's runs from there are named."""
    return {settings.smallest: f" from {settings.smallest}"} | {settings.base: ""}


def make_optimizer(name: str, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """No weight decay; SGD without momentum, the others as PyTorch and their papers have them."""
    p = model.parameters()
    if name == "SGD":
        return torch.optim.SGD(p, lr=lr)
    if name == "Nesterov":
        return torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True)
    if name == "LARS":
        return LARS(p, lr=lr, momentum=0.9, trust=0.01)
    return LAMB(p, lr=lr, weight_decay=0.0) if name == "LAMB" else torch.optim.Adam(p, lr=lr)


def noise_and_signal(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """tr(Sigma) and |G|^2 over the samples x, y."""

    def loss(weights: Any, one_x: torch.Tensor, one_y: torch.Tensor) -> torch.Tensor:
        logits = torch.func.functional_call(model, weights, (one_x[None],))
        return nn.functional.cross_entropy(logits, one_y[None])

    weights = {name: p.detach() for name, p in model.named_parameters()}
    rows = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, y)
    flat = torch.cat([g.flatten(1) for g in rows.values()], dim=1)
    mean = flat.mean(0)
    return (flat - mean).square().sum(1).mean().item(), mean.square().sum().item()


@cache
def measure(
    settings: Settings, optimizer: str, batch: int, lr: float, seed: int, watch: bool = False
) -> dict[str, Any]:
    """Trains until the target; `steps` is null where it is not reached. watch: the noise scale beside each loss.

    Rules often come to a rate that has been run already: the same run is not made twice.
    """
    start = time.perf_counter()
    x, y = data.digits("train", flat=True).tensors
    model = MLP((64, 128, 10), seed=seed)
    made, draw = make_optimizer(optimizer, model, lr), torch.Generator().manual_seed(seed)
    steps, look, reached, path = 0, 1, None, []
    while steps < settings.most:
        mine = torch.randint(len(x), (batch,), generator=draw)
        made.zero_grad()
        nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
        made.step()
        steps += 1
        if steps < look:
            continue
        look = max(steps + 1, math.ceil(steps * 1.05))
        with torch.no_grad():
            loss = nn.functional.cross_entropy(model(x), y).item()
        if watch:
            noise, signal = noise_and_signal(model, x, y)
            path.append([steps, round(loss, 4), round(noise, 6), round(signal, 8)])
        if not math.isfinite(loss):
            break
        if loss <= settings.target:
            reached = steps
            break
    run: dict[str, Any] = {"lr": lr, "steps": reached}
    if watch:
        run["path"] = path
    return run | {"seconds": round(time.perf_counter() - start, 2)}


def tuned(results: dict[str, Any], optimizer: str, batch: int) -> float:
    """The rate at which the fewest tuning seeds miss the target, and of those the one with the fewest steps, averaged.

    A missed run counts as the steps after which it was given up. Raises ValueError where every rate misses it always.
    """
    settings = results["settings"]
    means = {}
    for lr in grid(optimizer):
        name = key("tuning", optimizer, batch, lr)
        seeds = range(TUNING_SEED, TUNING_SEED + settings["tuning_seeds"])
        steps = [results["runs"][key(name, seed)]["steps"] for seed in seeds]
        missed = steps.count(None)
        if missed < len(steps):
            means[lr] = missed, statistics.mean(settings["most"] if s is None else s for s in steps)
    if not means:
        raise ValueError(f"{optimizer} reaches the target at no rate of {grid(optimizer)}")
    return min(means, key=means.__getitem__)


def jobs(settings: Settings, seeds: int, results: dict[str, Any]) -> Iterator[Job]:
    """Tuning first, then all runs seed by seed."""
    ends = [settings.smallest, settings.largest]
    where = {name: batches(settings) if name in SWEPT else ends for name in GRIDS}

    def job(*how: Any, **more: Any) -> Any:
        return lambda: dict(measure(settings, *how, **more))

    for optimizer, sizes in where.items():
        for batch in sizes:
            for lr in grid(optimizer):
                for seed in range(TUNING_SEED, TUNING_SEED + settings.tuning_seeds):
                    name = key("tuning", optimizer, batch, lr, seed)
                    yield name, job(optimizer, batch, lr, seed)
    for seed in range(seeds):
        for optimizer, sizes in where.items():
            for batch in sizes:
                lr = tuned(results, optimizer, batch)
                yield key("tuned", optimizer, batch, seed), job(optimizer, batch, lr, seed)
        for optimizer in SWEPT:
            for base, suffix in bases(settings).items():
                base_lr = tuned(results, optimizer, base)
                for batch in [b for b in batches(settings) if b > base]:
                    for rule, scale in RULES.items():
                        name, lr = rule + suffix, scale(base_lr, base, batch)
                        yield key(name, optimizer, batch, seed), job(optimizer, batch, lr, seed)
        ways = {"noise scale": settings.largest, "noise scale, smallest batch": settings.smallest}
        for name, batch in ways.items():
            lr = tuned(results, "SGD", batch)
            yield key(name, seed), job("SGD", batch, lr, seed, watch=True)


def load(path: Path, settings: Settings) -> dict[str, Any]:
    """The results so far. ValueError where the file was made with other settings, or in another format."""
    what = (__doc__ or "").split("\n", 1)[0]
    return results_file.load(path, what, format=FORMAT, settings=asdict(settings))


def study(path: Path, settings: Settings, seeds: int, budget: float | None = None) -> bool:
    """Runs what is missing in the file at `path`; True if nothing is missing any more."""
    torch.set_num_threads(1)
    results = load(path, settings)
    return results_file.run_missing(results, path, jobs(settings, seeds, results), seeds, budget)


def steps_of(results: dict[str, Any], *name: Any) -> list[float]:
    """The steps of each seed's run; infinite where the target was not reached."""
    found = [results["runs"][key(*name, seed)]["steps"] for seed in range(results["seeds"])]
    return [math.inf if steps is None else steps for steps in found]


def summary(results: dict[str, Any]) -> Iterator[str]:
    """A line per optimizer, batch and rule."""
    seen = {tuple(k.split(" | ")[:-1]) for k in results["runs"]}
    for name in sorted(n for n in seen if n[0] != "tuning" and "noise" not in n[0]):
        rate = results["runs"][key(*name, 0)]["lr"]
        steps = steps_of(results, *name)
        yield f"{' '.join(name):28s} rate {rate:<8.3g} median steps {statistics.median(steps):g}, all {steps}"


def main(arguments: list[str] | None = None) -> None:
    """Measures, and prints a line per optimizer, batch and rule."""
    results_file.command(arguments, __doc__, RESULTS, Settings(), study, load, summary)


if __name__ == "__main__":
    main()
