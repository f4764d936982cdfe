"""Weights and gradients of runs whose loss falls: which is broken, and how?"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require_diagnoses

DIAGNOSE = Exercise(
    "diagnose_training",
    lesson="06",
    title="Which run is broken, and how?",
    takes=("diagnose_training",),
    target="15 of 15 runs, of 3 to 5 ranks",
)

Diagnosis = tuple[str, int | None]
Run = tuple[list[list[Tensor]], list[list[Tensor]], float]  # by step and rank; the learning rate
# Ranks, weights, samples per rank; the rank and the step of a mistake.
SIZES = ((3, 4, 5, 1, 0), (4, 6, 3, 3, 1), (5, 3, 8, 0, 2))
STEPS, RATE = 4, 0.05


def trained(kind: str, size: tuple[int, int, int, int, int]) -> tuple[Run, list[float]]:
    """Linear regression by that many ranks, with a mistake; and the mean loss before each step and at the end."""
    ranks, features, samples, rank, since = size
    make = torch.Generator().manual_seed(ranks)
    x = torch.randn(ranks, samples, features, generator=make, dtype=torch.double)
    if kind == "same part":
        x = x[:1].expand_as(x)
    y = x.sum(2)
    start = torch.zeros(features, dtype=torch.double)
    now = [start.clone() for _ in range(ranks)]
    if kind == "apart":
        now[rank][-1] = 1e-3
    weights, gradients, losses = [now], [], []
    for step in range(STEPS + 1):
        off = [x[r] @ now[r] - y[r] for r in range(ranks)]
        losses.append(float(torch.stack([o.square().mean() for o in off]).mean()))
        if step == STEPS:
            break
        own = [2 * off[r] @ x[r] / samples for r in range(ranks)]
        taken = [torch.stack(own).sum(0) / (1 if kind == "sum" else ranks)] * ranks
        if kind == "alone" and step >= since:
            taken = [own[r] if r == rank else g for r, g in enumerate(taken)]
        now = [w - RATE * g for w, g in zip(now, taken, strict=True)]
        weights.append(now)
        gradients.append(own)
    return (weights, gradients, RATE), losses


@cache
def cases() -> dict[str, list[tuple[Run, Diagnosis]]]:
    """Three runs of each kind, always the same ones."""
    return {
        kind: [
            (trained(kind, size)[0], (kind, size[3] if kind in ("apart", "alone") else None))
            for size in SIZES
        ]
        for kind in ("healthy", "apart", "sum", "alone", "same part")
    }


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_diagnoses(
        answer,
        cases()[kind] + cases()["healthy"],
        describe=lambda weights, gradients, _: (
            f"A run of {len(weights[0])} ranks and {len(gradients)} steps"
        ),
        hint=hint,
        healthy="Each step is the learning rate times the mean gradient here, but for rounding.",
        example=("alone", 2),
    )


@DIAGNOSE.check("replicas that start apart", points=2)
def check_apart(answer: Answer) -> None:
    """One rank has missed the broadcast."""
    _require(answer, "apart", "Whose weights are unlike the others' before the first step?")


@DIAGNOSE.check("a sum for a mean", points=2)
def check_sum(answer: Answer) -> None:
    """All take the same step, and it is too long."""
    _require(answer, "sum", "How long is a step, in mean gradients times the learning rate?")


@DIAGNOSE.check("a rank that steps alone", points=3)
def check_alone(answer: Answer) -> None:
    """From some step on."""
    _require(
        answer,
        "alone",
        "Whose step is its own gradient, not the mean? Not every run goes wrong in its first step.",
    )


@DIAGNOSE.check("the same samples on all ranks", points=2)
def check_same_part(answer: Answer) -> None:
    """Weights and steps are as they should be."""
    _require(
        answer,
        "same part",
        "Every step is right. Compare the gradients of the ranks: what does each add to the mean?",
    )
