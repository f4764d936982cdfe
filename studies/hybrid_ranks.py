"""Four axes on 16 ranks and five on 32: training equals one process, and every axis sends the bytes of its formula.

    python studies/hybrid_ranks.py                    # until all is run; writes studies/results/hybrid_ranks.json
    python studies/hybrid_ranks.py --budget 100       # stop after 100 s; call again to go on where it stopped

The course's tests hold every layout of 1, 2, 4 and 8 ranks to one process, and three axes fit on eight. Here are the
layouts with two ranks on each of four axes, and with two on each of all five. A small Transformer in double precision
takes three clipped steps of SGD with momentum on uneven documents, and one process takes the same. The ranks are
processes of one machine and send over the course's ring backend, which counts each message. A message is laid to the
axes in which its two ranks differ; the formula is dtcourse/hybrid/volume.py's.

runs["LAYOUT | reduce ... | SEED"] =
    ranks, equation
    loss, norm:  the largest relative difference from one process's, over steps (and, of norms, ranks)
    gradient, value: the same of 2-norms, over parameters and ranks; of gradients also over steps
    bytes:       {"axis, operation": [counted, by the formula]}, of the second step, of all ranks together
    seconds:     of the whole launch on the clock: a machine with two cores runs 32 ranks in turns

The seconds say how long it takes on a machine that may have other work (it had, for the committed results), and nothing
about 32 machines. A seed draws weights and
tokens. The file holds every run with settings, machine, date and versions. It is written after each run, and a run that
is in it is not repeated.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.course import results_file
from dtcourse.course.results_file import key
from dtcourse.hybrid import HybridConfig, parallelize
from dtcourse.hybrid.config import AXES
from dtcourse.hybrid.volume import volume
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.parameters.whole import full_gradients, full_state_dict

RESULTS = Path(__file__).parent / "results" / "hybrid_ranks.json"
FORMAT = 1
IGNORED = -100
LIMIT = 3600.0  # seconds of a launch


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on; a results file is continued only with the same ones (seeds may grow)."""

    vocab: int = 32
    width: int = 16
    blocks: int = 2
    heads: int = 4
    length: int = 8
    samples: int = 16
    micro_batches: int = 2
    steps: int = 3
    lr: float = 0.3
    momentum: float = 0.9
    max_norm: float = 0.3

    @property
    def model(self) -> TransformerConfig:
        """A model of which the formula knows everything."""
        return TransformerConfig(
            vocab=self.vocab, n_layers=self.blocks, d_model=self.width, n_heads=self.heads, max_length=self.length,
            tied=False, bias=False,
        )  # fmt: skip


def layouts(settings: Settings) -> list[HybridConfig]:
    """Two ranks on each axis but one, and on each; where full sharding is among them, gradients leave often or once."""
    degrees = [dict.fromkeys((n for n in AXES if n != left), 2) for left in (*AXES, None)]
    return [
        HybridConfig(**two, micro_batches=settings.micro_batches, reduce_once=once)
        for two in degrees
        for once in ((False, True) if len(two) == len(AXES) else (False,))
    ]


def name(config: HybridConfig) -> str:
    """Of a layout in the results file."""
    wide = [f"{axis} {degree}" for axis, degree in config.degrees.items() if degree > 1]
    return key(" x ".join(wide), "reduce once" if config.reduce_once else "reduce per micro-batch")


def batch(settings: Settings, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Tokens and what follows them; documents are uneven, so some targets count nothing."""
    make = torch.Generator().manual_seed(1000 * seed + step)
    shape = (settings.samples, settings.length + 1)
    tokens = torch.randint(settings.vocab, shape, generator=make)
    lengths = torch.randint(2, settings.length + 1, (settings.samples, 1), generator=make)
    targets = tokens[:, 1:].masked_fill(torch.arange(settings.length) >= lengths, IGNORED)
    return tokens[:, :-1], targets


@dataclass
class Found:
    """What training has left behind, by step; the state at the end."""

    losses: list[float | None]
    norms: list[float]
    gradients: list[dict[str, Any]]
    state: dict[str, Tensor]


def sgd(settings: Settings, parameters: Iterator[Tensor]) -> torch.optim.Optimizer:
    """Whose steps show a gradient that is too large or too small."""
    return torch.optim.SGD(parameters, lr=settings.lr, momentum=settings.momentum)


def alone(settings: Settings, seed: int) -> Found:
    """One process on the whole batch, in plain PyTorch."""
    model, found = Transformer(settings.model, seed=seed).double(), Found([], [], [], {})
    optimizer = sgd(settings, model.parameters())
    for step in range(settings.steps):
        optimizer.zero_grad()
        tokens, targets = batch(settings, seed, step)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        found.losses.append(loss.item())
        found.gradients.append(
            {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        )
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_norm)
        found.norms.append(norm.item())
        optimizer.step()
    found.state = {n: value.clone() for n, value in model.state_dict().items()}
    return found


def together(settings: Settings, config: HybridConfig, seed: int) -> tuple[dict[str, int], Found]:
    """The same on this rank of many, and its place on the mesh."""
    model = Transformer(settings.model, seed=seed).double()
    training, found = parallelize(model, config.mesh("cpu"), config), Found([], [], [], {})
    optimizer = sgd(settings, training.module.parameters())
    for step in range(settings.steps):
        optimizer.zero_grad()
        own = [
            t.chunk(training.data_ranks)[training.data_rank] for t in batch(settings, seed, step)
        ]
        with traffic.phase(f"step {step}"):
            loss = training.step(*own)
        found.losses.append(None if loss is None else loss.item())
        with traffic.phase("besides"):
            found.gradients.append(full_gradients(training.module))
            found.norms.append(training.clip_grad_norm(settings.max_norm).item())
        optimizer.step()
    found.state = full_state_dict(training.module)
    return training.layout.place, found


def apart(mine: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """The largest relative difference of 2-norms. ValueError where there are other names."""
    if mine.keys() != right.keys():
        raise ValueError(f"{sorted(mine.keys() ^ right.keys())} are on one side only")
    return max(float((mine[n] - right[n]).norm() / right[n].norm()) for n in right)


def off(mine: Sequence[float | None], right: Sequence[float | None]) -> float:
    """The same of numbers; 0 where a rank has none."""
    return max(
        abs(m / r - 1) if m is not None and r else 0.0 for m, r in zip(mine, right, strict=True)
    )


def counted(run: Any, config: HybridConfig) -> dict[str, int]:
    """Bytes of the second step, by the axes in which sender and receiver differ, and by operation."""
    places = [place for place, _ in run]
    sent: Counter[str] = Counter()
    for row in run.traffic.select(phase="step 1", direction="sent"):
        here, there = places[row.rank], places[row.peer]
        axes = " x ".join(axis for axis in AXES if here[axis] != there[axis])
        if row.operation in ("all_gather", "reduce_scatter") and config.cp > 1:
            axes = "dp_shard x cp"  # a ring over ranks of two axes: neighbours differ in one of them, or in both
        sent[f"{axes}, {row.operation}"] += row.bytes
    return dict(sent)


def measure(settings: Settings, config: HybridConfig, seed: int) -> dict[str, Any]:
    """One launch beside one process."""
    right, start = alone(settings, seed), time.monotonic()
    run: Any = launch(
        together, config.ranks, settings, config, seed, backend="ring", record=True, timeout=LIMIT
    )
    seconds = time.monotonic() - start
    found = [one for _, one in run]
    with torch.device("meta"):
        model = Transformer(settings.model)
    formula = volume(model, config, settings.samples)
    by_formula = {f"{axis}, {operation}": n for (axis, operation), n in formula.items()}
    sent = counted(run, config)
    steps = range(settings.steps)
    return {
        "ranks": config.ranks,
        "equation": config.equation,
        "loss": max(off(one.losses, right.losses) for one in found),
        "norm": max(off(one.norms, right.norms) for one in found),
        "gradient": max(
            apart(one.gradients[i], right.gradients[i]) for one in found for i in steps
        ),
        "value": max(apart(one.state, right.state) for one in found),
        "bytes": {
            what: [sent.get(what, 0), by_formula.get(what, 0)]
            for what in sorted({*sent, *by_formula})
        },
        "seconds": round(seconds, 1),
    }


def load(path: Path, settings: Settings) -> dict[str, Any]:
    """The results so far. ValueError where the file was made with other settings."""
    what = (__doc__ or "").split("\n", 1)[0]
    return results_file.load(path, what, format=FORMAT, settings=asdict(settings))


def study(path: Path, settings: Settings, seeds: int, budget: float | None = None) -> bool:
    """Runs what is missing in the file at `path`; True if nothing is missing any more."""
    torch.set_num_threads(1)
    jobs = (
        (key(name(config), seed), partial(measure, settings, config, seed))
        for seed in range(seeds)
        for config in layouts(settings)
    )
    return results_file.run_missing(load(path, settings), path, jobs, seeds, budget)


def summary(results: dict[str, Any]) -> Iterator[str]:
    """A line per run, and one per axis and operation."""
    for title, run in results["runs"].items():
        errors = ", ".join(
            f"{what} {run[what]:.1e}" for what in ("loss", "norm", "gradient", "value")
        )
        yield f"{title}: {run['ranks']} ranks, {run['seconds']:.0f} s; apart from one process: {errors}"
        for what, (sent, right) in run["bytes"].items():
            yield f"    {what:30s}{sent:12,} bytes, formula {right:12,}"


def main(arguments: list[str] | None = None) -> None:
    """Runs, and prints what it found for each layout."""
    parser = results_file.parser(__doc__, RESULTS, Settings())
    parser.set_defaults(seeds=1)
    options = parser.parse_args(arguments)
    settings = results_file.chosen(options, Settings())
    done = study(options.out, settings, options.seeds, options.budget)
    results = load(options.out, settings)
    print(*summary(results), results_file.how_far(results, done), sep="\n")


if __name__ == "__main__":
    main()
