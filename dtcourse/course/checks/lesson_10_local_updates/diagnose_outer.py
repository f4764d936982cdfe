"""Records of local steps and outer steps, drawn anew each time: which run is broken, and how."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, place, require_kind
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_outer",
    lesson="10",
    title="Which run is broken, and how?",
    takes=("diagnose_outer",),
    target="32 of 32 runs, of 3 to 5 ranks and periods of 3 to 5, drawn anew each time, and shuffled",
)

Diagnosis = tuple[str, int | None]
Given = tuple[Tensor, Tensor, float, int, float, float]
Case = tuple[Given, Diagnosis]
Size = tuple[int, int, int, int, float, float, float]


def recorded(
    size: Size, *, alone: int | None = None, behind: int | None = None, sign: float = 1.0, keeps: bool = True
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Models (T + 1, p, n) before the first step and after each, and gradients (T, p, n).

    size: ranks, rounds, period, numbers, learning rate, outer rate, outer momentum
    """
    p, rounds, period, n, lr, outer_lr, momentum = size
    gradients = torch.randn(rounds * period, p, n, dtype=torch.double)
    start = torch.randn(n, dtype=torch.double).expand(p, n)
    models, velocity = [start], torch.zeros(p, n, dtype=torch.double)
    for step, gradient in enumerate(gradients, start=1):
        before = models[-1]
        x = before - lr * gradient
        if step % period == 0:
            ends = x.clone()
            if behind is not None:
                ends[behind] = before[behind]
            mean = ends.mean(0).repeat(p, 1)
            if alone is not None:
                others = [rank for rank in range(p) if rank != alone]
                mean[others], mean[alone] = ends[others].mean(0), ends[alone]
            delta = sign * (start - mean)
            velocity = (momentum * velocity if keeps else 0.0) + delta
            x = start = start - outer_lr * (delta + momentum * velocity)
        models.append(x)
    return torch.stack(models), gradients


def drawn(kind: str, turn: int) -> Case:
    """A run of this kind, rounded as one in single precision is, and its diagnosis.

    turn: 0 to 3; the first rank is at fault, and the last
    """
    p, rounds, period = (random.randint(3, 5) for _ in range(3))
    rank = place(turn, 0, p - 1)
    lr, outer_lr = random.choice((0.05, 0.1, 0.2)), random.choice((0.5, 0.7, 0.9))
    momentum = random.choice((0.5, 0.8, 0.9))
    ways: dict[str, tuple[int | None, dict[str, Any]]] = {
        "healthy": (None, {}),
        "alone": (rank, {"alone": rank}),
        "a step behind": (rank, {"behind": rank}),
        "wrong sign": (None, {"sign": -1.0}),
        "momentum lost": (None, {"keeps": False}),
    }
    where, options = ways[kind]
    size = (p, rounds, period, random.randint(8, 20), lr, outer_lr, momentum)
    models, gradients = (x.float().double() for x in recorded(size, **options))
    return (models, gradients, lr, period, outer_lr, momentum), (kind, where)


def _described(
    _models: Tensor, gradients: Tensor, _lr: float, period: int, *_momentum: float
) -> str:
    steps, p, _ = gradients.shape
    rounds = plural(steps // period, "round")
    return f"A run of {plural(p, 'rank')} and {rounds} of {plural(period, 'step')}"


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=drawn,
        each=4,
        describe=_described,
        healthy="What does a right meeting make of these models, and how far apart are two records of which one is "
        "rounded to single precision?",
        example=("alone", 2),
    )


@DIAGNOSE.check("a rank in a group of its own", points=2)
def check_alone(answer: Answer) -> None:
    """The others meet without it."""
    _require(
        answer, "alone", "Which ranks have the same model after a meeting, and whose mean is it?"
    )


@DIAGNOSE.check("a rank that is a step behind", points=3)
def check_behind(answer: Answer) -> None:
    """It brings the model that it had before its last step."""
    _require(
        answer,
        "a step behind",
        "All ranks have one model after a meeting. Of which models is it the mean: those after the last inner step, "
        "of every rank?",
    )


@DIAGNOSE.check("an outer step backwards", points=2)
def check_sign(answer: Answer) -> None:
    """Away from what the ranks have found."""
    _require(
        answer,
        "wrong sign",
        "Compare where the ranks went within a round with where the outer step goes.",
    )


@DIAGNOSE.check("momentum that is not kept", points=3)
def check_momentum(answer: Answer) -> None:
    """The first meeting cannot tell."""
    _require(
        answer,
        "momentum lost",
        "The first meeting is as it should be. What does the second one carry on from the first?",
    )
