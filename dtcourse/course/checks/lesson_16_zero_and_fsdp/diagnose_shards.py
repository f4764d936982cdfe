"""Shards and gradients of runs whose loss falls: which is broken, and how?"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require_diagnoses

DIAGNOSE = Exercise(
    "diagnose_shards",
    lesson="16",
    title="Which run is broken, and how?",
    takes=("diagnose_shards",),
    target="15 of 15 runs, of 2 to 4 ranks",
)

Diagnosis = tuple[str, int | None]
Run = tuple[list[list[Tensor]], list[list[Tensor]], float, float]  # by step and rank; lr, max_norm
# Ranks, numbers in a part, samples per rank; the rank and the step of a mistake.
SIZES = ((2, 4, 5, 1, 0), (3, 3, 6, 0, 1), (4, 2, 8, 2, 2))
STEPS, LR, MAX_NORM = 4, 0.05, 1.0
KINDS = ("healthy", "not updated", "local norm", "own gradient", "wrong part")


def trained(kind: str, size: tuple[int, int, int, int, int]) -> Run:
    """Linear regression on shards by that many ranks, with a mistake."""
    ranks, part, samples, rank, since = size
    make = torch.Generator().manual_seed(10 * ranks)
    x = torch.randn(ranks, samples, ranks * part, generator=make, dtype=torch.double)
    y = x.sum(2) + torch.randn(ranks, samples, generator=make, dtype=torch.double)
    now = list(torch.zeros(ranks * part, dtype=torch.double).split(part))
    shards, gradients = [now], []
    for step in range(STEPS):
        whole = torch.cat(now)
        own = [2 * x[r].T @ (x[r] @ whole - y[r]) / samples for r in range(ranks)]
        mean = torch.stack(own).mean(0)
        mine = [mean[r * part : (r + 1) * part] for r in range(ranks)]
        if kind == "own gradient" and step >= since:
            mine[rank] = own[rank][rank * part : (rank + 1) * part]
        if kind == "wrong part":
            mine = [*mine[1:], mine[0]]
        norms = [float(mean.norm())] * ranks
        if kind == "local norm":
            norms = [float(g.norm()) for g in mine]
        scales = [min(1.0, MAX_NORM / norm) for norm in norms]
        if kind != "not updated":
            now = [w - LR * s * g for w, s, g in zip(now, scales, mine, strict=True)]
        shards.append(now)
        gradients.append(own)
    return shards, gradients, LR, MAX_NORM


@cache
def cases() -> dict[str, list[tuple[Run, Diagnosis]]]:
    """Three runs of each kind, always the same ones."""
    return {
        kind: [
            (trained(kind, size), (kind, size[3] if kind == "own gradient" else None))
            for size in SIZES
        ]
        for kind in KINDS
    }


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_diagnoses(
        answer,
        cases()[kind] + cases()["healthy"],
        describe=lambda shards, gradients, *_: (
            f"A run of {len(shards[0])} ranks and {len(gradients)} steps"
        ),
        hint=hint,
        healthy="Every part takes the step that one process would take, clipped by the norm of the whole mean "
        "gradient, but for rounding.",
        example=("own gradient", 2),
    )


@DIAGNOSE.check("shards that stand still", points=1)
def check_not_updated(answer: Answer) -> None:
    """The optimizer was built before sharding."""
    _require(answer, "not updated", "Which shards move at all?")


@DIAGNOSE.check("clipped by a local norm", points=3)
def check_local_norm(answer: Answer) -> None:
    """Each rank's step has the right direction, and a length of its own."""
    _require(
        answer,
        "local norm",
        "Every part goes along the mean gradient. By which norm has each rank divided its own?",
    )


@DIAGNOSE.check("a rank that keeps its own gradient", points=3)
def check_own_gradient(answer: Answer) -> None:
    """From some step on."""
    _require(
        answer,
        "own gradient",
        "Whose part moves along its own gradient, not the mean? Not every run goes wrong in its first step.",
    )


@DIAGNOSE.check("the neighbour's part", points=2)
def check_wrong_part(answer: Answer) -> None:
    """The chunks of the reduce-scatter were in another order."""
    _require(answer, "wrong part", "Along which run of the mean gradient does each part move?")
