"""Several trainings and several ranks: how many ranks for each training? Measured on an emulated cluster."""

from __future__ import annotations

import math
from typing import Any

from dtcourse.course.judging import Answer, Exercise, require, require_near_best
from dtcourse.emulation import EmulatedNetwork
from dtcourse.plural import plural

RANKS = Exercise(
    "ranks_per_run",
    lesson="01b",
    title="How many ranks per run?",
    takes=("ranks_per_run",),
    target="at most 1.01 times the shortest time to the end of the last run, measured on 9 emulated clusters",
)

NUMBERS = (
    840  # of 8 bytes, for each millisecond of `transfer`: every number of ranks up to 8 divides it
)
BANDWIDTH = NUMBERS * 8 / 1e-3

# runs, ranks, seconds of computing, of repeated work, latency of a message, seconds for a gradient's bytes
Case = tuple[int, int, float, float, float, float]
MANY: tuple[Case, ...] = (
    (12, 8, 100e-3, 5e-3, 1e-3, 8e-3),
    (8, 8, 50e-3, 2e-3, 1e-3, 3e-3),
    (5, 8, 100e-3, 2e-3, 1e-3, 4e-3),
)
FEW: tuple[Case, ...] = (
    (1, 8, 60e-3, 1e-3, 2e-3, 4e-3),
    (1, 8, 3e-3, 1e-3, 2e-3, 4e-3),
    (3, 8, 40e-3, 4e-3, 2e-3, 60e-3),
)
UNEVEN: tuple[Case, ...] = (
    (2, 7, 90e-3, 4e-3, 1e-3, 6e-3),
    (1, 7, 200e-3, 5e-3, 1e-3, 10e-3),
    (9, 7, 100e-3, 20e-3, 1e-3, 10e-3),
)


def _performed(ranks_per_run: Any, cases: tuple[Case, ...]) -> list[tuple[Any, float]]:
    """For each case, the choice, and when this rank had done its part of it."""
    import torch
    import torch.distributed as dist

    from dtcourse import emulation

    rank = dist.get_rank()
    found: list[tuple[Any, float]] = []
    for runs, ranks, compute, repeated, latency, transfer in cases:
        size = ranks_per_run(runs, ranks, compute, repeated, latency, transfer)
        if not (type(size) is int and 1 <= size <= ranks):
            found.append((repr(size), 0.0))
            continue
        side_by_side = ranks // size
        groups = [
            dist.new_group(list(range(i * size, (i + 1) * size)))
            for i in range(side_by_side if size > 1 else 0)
        ]
        gradient = torch.ones(round(transfer * 1e3) * NUMBERS, dtype=torch.double)
        start = torch.tensor(emulation.now(), dtype=torch.double)
        dist.all_reduce(start, dist.ReduceOp.MAX)
        begin = start.item() + 1.0  # by then every rank has heard of it
        emulation.sleep(begin - emulation.now())
        mine = range(rank // size, runs, side_by_side) if rank < size * side_by_side else ()
        for _ in mine:
            emulation.sleep(compute / size)
            if size > 1:
                dist.all_reduce(gradient, group=groups[rank // size])
            emulation.sleep(repeated)
        found.append((size, emulation.now() - begin))
    return found


def seconds(case: Case, size: int) -> float:
    """Until the last run's step is done, with `size` ranks for each run."""
    runs, ranks, compute, repeated, latency, transfer = case
    step = compute / size + repeated + 2 * (size - 1) * (latency + transfer / size)
    return math.ceil(runs / (ranks // size)) * step


def _require(answer: Answer, cases: tuple[Case, ...], hint: str) -> None:
    _, ranks, _, _, latency, _ = cases[0]
    network = EmulatedNetwork(latency=latency, bandwidth=BANDWIDTH)
    run = answer.run(_performed, ranks, cases, network=network, clock="virtual", backend="ring")
    for case, performed in zip(cases, zip(*run, strict=True), strict=True):
        runs, ranks, compute, repeated, latency, transfer = case
        where = (
            f"{plural(runs, 'run')} on {ranks} ranks, {compute:g} s of computing, {repeated:g} s repeated, "
            f"{latency:g} s per message, {transfer:g} s for a gradient's bytes"
        )
        size = performed[0][0]
        require(
            type(size) is int, f"{where}: a number of ranks is an int, 1 to {ranks}; got {size}."
        )
        least = min(seconds(case, other) for other in range(1, ranks + 1))
        taken = max(took for _, took in performed)
        require_near_best(where, (size,), taken * 1e3, least * 1e3, "ms", hint)


@RANKS.check("many runs", points=3)
def check_many(answer: Answer) -> None:
    """As many as ranks, or more, or nearly."""
    _require(
        answer,
        MANY,
        "How many runs go side by side, how often one after the other, and is the last round full?",
    )


@RANKS.check("few runs", points=3)
def check_few(answer: Answer) -> None:
    """Sharing one has its price."""
    _require(
        answer,
        FEW,
        "What does one step cost on that many ranks, with every message of its all-reduce?",
    )


@RANKS.check("ranks that do not divide", points=3)
def check_uneven(answer: Answer) -> None:
    """Seven of them."""
    _require(
        answer,
        UNEVEN,
        "Seven ranks make how many groups of three? Has every size been tried, and is what each rank repeats paid "
        "in every round?",
    )
