"""Expert collapse, measured: a small language model with eight experts, its gate left alone, or balanced in four ways.

    python studies/expert_collapse.py                    # until all is measured; writes studies/results/...json
    python studies/expert_collapse.py --budget 100       # stop after 100 s; call again to go on where it stopped

The model is one block of attention and experts, over bytes of Python's manual; a token visits one expert (Switch
Transformer, Fedus et al. 2101.03961), and an expert takes at most 1.25 times its equal share of a batch: the others are
dropped. Its MLPs are narrow, so that a model which uses one of them only has too few parameters for its text, and its
loss shows it.

The set-up was chosen so that collapse happens within 600 steps, by trial runs of 800. A gate that learns at the rate of
all else had 4 of 8 experts in use at the end, without any balancing. At 10 times that rate it had 1.2, and no remedy
undid it wholly: 0.01 of Switch's loss reached 6 experts, a bias 4.6. (Both on seed 0, which is among the measured
ones.) At 4 times that rate, which is the one here, it had 2 and 3 on seeds 1000 and 1001, and the remedies worked.
"gate at the common rate" is measured, too. The loss's weight 0.01 is Switch's. The bias's rate 0.001 is the paper's
(Wang et al. 2408.15664); on seeds 1000 and 1001 rates of 0.003 and 0.01 used fewer experts or as many. Its scores are
sigmoids, as there, the others' softmaxes. Expert choice looks at all tokens of a batch, later ones too (Zhou et al.
2202.09368), so its loss is no language model's that writes token by token; and it leaves no token out for want of room,
but some because no expert chose them.

Each seed draws first weights and passages of text. All methods of one seed share both,
so differences are taken within a seed.

A run holds, for each window of steps: of each expert the share of tokens that want it, in thousandths; the effective
number of experts, exp of the entropy of the shares in a batch, mean over the window; and the share of tokens dropped.
Then the mean cross-entropy of the manual's last tenth in nats a byte, with the capacity of training, and without any.
The file has each single run, settings, machine, date and versions. It is written after each run, and a run that is in
it is not repeated.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dtcourse import data
from dtcourse.course import results_file
from dtcourse.course.curves import interval
from dtcourse.models import (
    BiasBalancedGate,
    ExpertChoiceGate,
    MoE,
    TopKGate,
    Transformer,
    TransformerConfig,
)
from dtcourse.models.seeding import seeded

RESULTS = Path(__file__).parent / "results" / "expert_collapse.json"
FORMAT = 1


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on; a results file is continued only with the same ones (seeds may grow)."""

    steps: int = 600
    window: int = 20  # steps
    batch: int = 16
    length: int = 32
    width: int = 48  # of the model, and of each expert's hidden layer
    experts: int = 8
    test_blocks: int = 1024  # at most
    capacity_factor: float = 1.25
    lr: float = 5e-3  # AdamW, no decay of weights, falls to zero by a cosine


@dataclass(frozen=True)
class Method:
    """How a gate is kept from collapse. rate: the gate's learning rate, as a multiple of all else's."""

    name: str
    gate: str = "top 1"  # or "noisy", "bias", "choice"
    balancing: float = 0.0
    rate: float = 4.0
    bias_rate: float = 1e-3


NONE = Method("no balancing")
METHODS = [
    NONE,
    Method("auxiliary loss", balancing=0.01),
    Method("bias", "bias"),
    Method("noise", "noisy"),
    Method("expert choice", "choice"),
    Method("no balancing, gate at the common rate", rate=1.0),
]


def build(settings: Settings, method: Method, seed: int) -> tuple[Transformer, MoE]:
    """The model, and its mixture. The same weights for the same seed, whatever the gate."""
    config = TransformerConfig(
        d_model=settings.width, d_ff=settings.width, n_layers=1, n_heads=4, max_length=settings.length,
        experts=settings.experts, top_k=1, balancing=method.balancing,
    )  # fmt: skip
    model = Transformer(config, seed=seed)
    mixture: Any = model.blocks[0].mlp
    first, shape = mixture.gate.linear.weight, (settings.width, settings.experts)
    if method.gate == "noisy":
        mixture.gate = TopKGate(*shape, 1, noise=True)
    elif method.gate == "bias":
        mixture.gate = BiasBalancedGate(*shape, 1, rate=method.bias_rate)
    elif method.gate == "choice":
        mixture.gate = ExpertChoiceGate(*shape, 1.0)
    mixture.gate.linear.weight = first
    if method.gate != "choice":
        mixture.capacity_factor = settings.capacity_factor
    return model, mixture


def effective(counts_E: Tensor) -> float:
    """exp of the entropy of the experts' shares: 1 where one has all tokens, E where all have as many."""
    shares_E = counts_E.double() / counts_E.sum()
    return float(torch.special.entr(shares_E).sum().exp())


def left_out(settings: Settings, tokens_R: Tensor) -> float:
    """The share of a batch's tokens that no expert computes."""
    return 1 - len(tokens_R.unique()) / (settings.batch * settings.length)


def passages(settings: Settings, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of blocks from anywhere in the training text, with the tokens that follow; without end."""
    pool = data.text(split="train", length=settings.length).tokens
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(pool) - settings.length, (settings.batch, 1), generator=generator)  # fmt: skip
        text = pool[starts + torch.arange(settings.length + 1)]
        yield text[:, :-1], text[:, 1:]


@torch.no_grad()
def held_out_loss(settings: Settings, model: Transformer, mixture: MoE, drop: bool) -> float:
    """Mean cross-entropy of the held-out text, in batches as long as training's."""
    held_out = data.text(split="test", length=settings.length)
    number = min(settings.test_blocks, len(held_out)) // settings.batch * settings.batch
    capacity, losses = mixture.capacity_factor, []
    mixture.capacity_factor = capacity if drop else None
    model.eval()
    for start in range(0, number, settings.batch):
        blocks = [held_out[i] for i in range(start, start + settings.batch)]
        tokens, targets = (torch.stack(part) for part in zip(*blocks, strict=True))
        losses.append(F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).item())
    model.train()
    mixture.capacity_factor = capacity
    return statistics.mean(losses)


def measure(settings: Settings, method: Method, seed: int) -> dict[str, Any]:
    """One training run: who had the tokens, window by window, and what it reached."""
    with seeded(seed):  # the noise of a noisy gate is drawn inside
        return _measure(settings, method, seed)


def _measure(settings: Settings, method: Method, seed: int) -> dict[str, Any]:
    start = time.process_time()
    model, mixture = build(settings, method, seed)
    gate: Any = mixture.gate
    own = list(gate.parameters())
    others = [p for p in model.parameters() if all(p is not g for g in own)]
    groups = [{"params": others}, {"params": own, "lr": settings.lr * method.rate}]
    optimizer = torch.optim.AdamW(groups, lr=settings.lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    wished: dict[str, Any] = {}  # the gate's, before a capacity drops anything
    gate.register_forward_hook(lambda module, inputs, routing: wished.update(routing=routing))
    windows: list[tuple[Tensor, list[float], list[float]]] = []
    for step, (tokens, targets) in zip(range(settings.steps), passages(settings, seed)):  # noqa: B905
        if step % settings.window == 0:
            windows.append((torch.zeros(settings.experts), [], []))
        loss = model.loss(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        routing = wished["routing"]
        counts_E, tokens_R = routing.counts_E, routing.tokens_R
        if isinstance(gate, BiasBalancedGate):
            gate.update(counts_E)
        chosen = left_out(settings, tokens_R) if method.gate == "choice" else 0.0
        total, numbers, dropped = windows[-1]
        total += counts_E
        numbers.append(effective(counts_E))
        dropped.append(mixture.num_dropped / tokens.numel() + chosen)
    return {
        "shares": [[round(1000 * s) for s in (t / t.sum()).tolist()] for t, _, _ in windows],
        "effective": [round(statistics.mean(numbers), 2) for _, numbers, _ in windows],
        "dropped": [round(statistics.mean(dropped), 3) for _, _, dropped in windows],
        "test_loss": round(held_out_loss(settings, model, mixture, drop=True), 4),
        "test_loss_dropless": round(held_out_loss(settings, model, mixture, drop=False), 4),
        "seconds": round(time.process_time() - start, 1),
    }


def load(path: Path, settings: Settings) -> dict[str, Any]:
    """The results so far. ValueError where the file was made with other settings or methods."""
    what = (__doc__ or "").split("\n", 1)[0]
    methods = {method.name: asdict(method) for method in METHODS}
    return results_file.load(path, what, format=FORMAT, settings=asdict(settings), methods=methods)


def key(method: Method, seed: int) -> str:
    """The name of a run in the results file."""
    return results_file.key(method.name, seed)


def study(path: Path, settings: Settings, seeds: int, budget: float | None = None) -> bool:
    """Runs what is missing in the file at `path`; True if nothing is missing any more."""
    torch.set_num_threads(1)
    jobs = (
        (key(method, seed), partial(measure, settings, method, seed))
        for seed in range(seeds)
        for method in METHODS
    )
    return results_file.run_missing(load(path, settings), path, jobs, seeds, budget)


def summary(results: dict[str, Any]) -> Iterator[str]:
    """A line a method, and its differences from no balancing within a seed, with 95 % intervals."""
    quantities = ("effective", "dropped", "test_loss", "test_loss_dropless")
    for method in METHODS:
        runs = [results["runs"].get(key(method, seed)) for seed in range(results["seeds"])]
        base = [results["runs"].get(key(NONE, seed)) for seed in range(results["seeds"])]
        both = [(a, b) for a, b in zip(runs, base, strict=True) if a and b]
        said = [f"{method.name}, {len(both)} seeds:"]
        for quantity in quantities:
            values, apart = (
                [last(a, quantity) for a, _ in both],
                [last(a, quantity) - last(b, quantity) for a, b in both],
            )
            said.append(f"  {quantity:19s}{statistics.mean(values):7.3f}")
            if method is not NONE and len(both) > 1:
                low, high = interval(apart)
                said[-1] += f"   from none {statistics.mean(apart):+.3f} [{low:+.3f}, {high:+.3f}]"
        yield "\n".join(said)


def last(run: dict[str, Any], quantity: str) -> float:
    """At the end: of what is measured window by window, the mean of the last five."""
    found = run[quantity]
    return statistics.mean(found[-5:]) if isinstance(found, list) else found


def main(arguments: list[str] | None = None) -> None:
    """Measures, and prints what it found for each method."""
    results_file.command(arguments, __doc__, RESULTS, Settings(), study, load, summary, always=True)


if __name__ == "__main__":
    main()
