"""The rank of each matrix's approximation: the quickest step that leaves little out. Really run, under emulation."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require, require_near_best, trials
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork

CHOOSE = Exercise(
    "choose_low_ranks",
    lesson="12c",
    title="Choose the ranks",
    takes=("choose_low_ranks",),
    target="on 4 clusters at most the error that is allowed, in at most 1.01 times the best choice's time; at most 12 "
    "of 125 choices measured",
    forbidden=("dtcourse.compression", "torch.distributed.algorithms"),
    launches=True,
)

RANKS, WARM = 2, 4  # processes; steps before the one that is measured
MOST = 12  # choices that an answer may measure
OPTIONS: tuple[Any, ...] = (1, 2, 4, 8, "whole")
CHOICES: list[trials.Choice] = list(product(OPTIONS, repeat=3))
SHAPES = ((64, 48), (96, 16), (24, 24))
# By matrix: by how much its singular values fall from one to the next, and the first one. The squared error that is
# allowed, of the squared length; FLOP/s; seconds and bytes per second of a message.
Cluster = tuple[tuple[float, float, float], tuple[float, float, float], float, float, float, float]
# With the best choice, which tests/course/test_choose_low_ranks.py finds by running every one.
SLOW: dict[Cluster, trials.Choice] = {
    ((0.6, 0.85, 0.8), (3.0, 2.0, 2.0), 0.09, 1e10, 1e-6, 1e6): (2, 8, 8),
    ((0.9, 0.5, 0.95), (1.0, 3.0, 1.0), 0.1, 1e10, 1e-6, 1e6): (4, 4, "whole"),
}
QUICK: dict[Cluster, trials.Choice] = {
    ((0.6, 0.85, 0.8), (3.0, 2.0, 2.0), 0.09, 2e8, 1e-6, 1e8): (2, "whole", "whole"),
    ((0.9, 0.5, 0.95), (1.0, 3.0, 1.0), 0.1, 1e9, 1e-4, 2e8): ("whole", "whole", "whole"),
}


def spectra(falls: tuple[float, ...], scales: tuple[float, ...]) -> list[Tensor]:
    """Each matrix's singular values, largest first."""
    return [
        scale * fall ** torch.arange(min(shape), dtype=torch.double)
        for fall, scale, shape in zip(falls, scales, SHAPES, strict=True)
    ]


def step(
    choice: trials.Choice, falls: tuple[float, ...], scales: tuple[float, ...]
) -> tuple[float, float]:
    """On each rank: the seconds of a warm step, and the squared error of its means, of their squared length."""
    import torch.distributed as dist

    from dtcourse import emulation

    make, means, mine = torch.Generator().manual_seed(0), [], []
    for (n, m), values in zip(SHAPES, spectra(falls, scales), strict=True):
        u, v = (
            torch.linalg.qr(torch.randn(k, len(values), generator=make, dtype=torch.double)).Q
            for k in (n, m)
        )
        means.append(u * values @ v.T)
        apart = 0.3 * values[0] * torch.randn(n, m, generator=make, dtype=torch.double) / n**0.5
        # Of two ranks: what one has more, the other has less.
        mine.append(means[-1] + (1 - 2 * dist.get_rank()) * apart)
    qs = [
        None if r == "whole" else torch.randn(m, r, generator=make, dtype=torch.double)
        for r, (_, m) in zip(choice, SHAPES, strict=True)
    ]
    for _ in range(WARM):
        _, qs = averaged(mine, qs)
    start = trials.begin_together()
    found, _ = averaged(mine, qs)
    seconds = emulation.now() - start
    error = sum((f - mean).square().sum() for f, mean in zip(found, means, strict=True))
    return seconds, float(error / sum(mean.square().sum() for mean in means))


def averaged(matrices: list[Tensor], qs: list[Any]) -> tuple[list[Tensor], list[Any]]:
    """PowerSGD's means and next Qs, in two messages; what has no Q travels whole, in the first one."""
    first = [w if q is None else w @ q for w, q in zip(matrices, qs, strict=True)]
    first = _mean_of(first)
    ps: list[Any] = [
        None if q is None else torch.linalg.qr(f).Q for f, q in zip(first, qs, strict=True)
    ]
    low = [w.T @ p for w, p in zip(matrices, ps, strict=True) if p is not None]
    second = iter(_mean_of(low) if low else [])
    new: list[Any] = [None if p is None else next(second) for p in ps]
    means = [f if p is None else p @ q.T for f, p, q in zip(first, ps, new, strict=True)]
    return means, new


def _mean_of(tensors: list[Tensor]) -> list[Tensor]:
    import torch.distributed as dist

    flat = torch.cat([t.flatten() for t in tensors]) / RANKS
    dist.all_reduce(flat)
    parts = flat.split([t.numel() for t in tensors])
    return [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]


def case(cluster: Cluster) -> trials.Case:
    """A cluster, as an answer gets it."""
    falls, scales, allowed, flops, latency, bandwidth = cluster
    told = spectra(falls, scales), list(SHAPES), list(OPTIONS), allowed
    emulated = {
        "devices": EmulatedDevice(flops, 10 * flops),
        "network": EmulatedNetwork(latency, bandwidth),
    }
    return trials.Case(step, RANKS, CHOICES, (falls, scales), told, MOST, emulated)


PRACTICE = case(((0.7, 0.7, 0.9), (2.0, 2.0, 1.0), 0.2, 1e10, 1e-6, 1e7))


def _require(answer: Answer, cases: dict[Cluster, trials.Choice], hint: str) -> None:
    for cluster, best in cases.items():
        falls, _, allowed, flops, latency, bandwidth = cluster
        where = (
            f"Singular values that fall by {', '.join(f'{fall:g}' for fall in falls)}, {flops:.3g} FLOP/s, "
            f"{latency:.3g} s and {bandwidth:.3g} bytes/s per message, {allowed:.0%} may be left out"
        )
        tried = case(cluster).tried(answer, step, [best])
        ((quickest, _),) = tried.probed
        why = f"For each matrix one of {OPTIONS} is possible."
        taken, error = trials.require_possible(where, tried, (8, 4, "whole"), why)
        require(
            error <= allowed,
            f"{where}: {tried.choice!r} leaves out {error:.1%}. Of what is the sum taken, and what did `measure` say?",
        )
        require_near_best(where, tried.choice, taken * 1e3, quickest * 1e3, "ms", hint)


@CHOOSE.check("where the link is slow", points=4)
def check_slow(answer: Answer) -> None:
    """What travels decides."""
    _require(
        answer,
        SLOW,
        "What does one rank more gain in each matrix, and what does it send, for each shape? Have you compared other "
        "combinations that leave out as little?",
    )


@CHOOSE.check("where the link is quick", points=4)
def check_quick(answer: Answer) -> None:
    """What is computed decides, too."""
    _require(
        answer,
        QUICK,
        "What does a matrix cost that does not travel whole, beside its bytes? Was it measured whole?",
    )
