"""Records of one step of data parallelism, drawn anew each time: which run is broken, and how."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, place, require_kind
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_run",
    lesson="01",
    title="Which run is broken, and how?",
    takes=("diagnose_run",),
    target="40 of 40 runs, of 3 to 5 ranks, drawn anew each time, and shuffled",
)

Given = tuple[Tensor, Tensor, Tensor, float]
Case = tuple[Given, tuple[str, int | None]]


def recorded(kind: str, p: int, n: int, lr: float, odd: int, twin: int) -> Given:
    """Weights (p, n) before one step of SGD, each rank's own gradient, weights after it:
    all as single precision has them. odd: the rank that is at fault, where one is. twin: the one whose share it reads
    """
    start = torch.randn(n, dtype=torch.double)
    # Shares of one batch: what they have in common is larger than what they differ by.
    common = torch.randn(n, dtype=torch.double)
    gradients = common + 0.2 * torch.randn(p, n, dtype=torch.double)
    before = start.repeat(p, 1)
    if kind == "other start":
        before[odd] += 0.05 * torch.randn(n, dtype=torch.double)
    if kind == "same share":
        gradients[odd] = gradients[twin]
    taken = gradients.mean(0).repeat(p, 1)
    if kind == "not averaged":
        taken = gradients
    elif kind == "summed":
        taken = p * taken
    elif kind == "left out":
        taken = gradients[[rank for rank in range(p) if rank != odd]].mean(0).repeat(p, 1)
    # The same sums, added in another order on each rank.
    noise = 1 + 1e-7 * torch.randn(p, n, dtype=torch.double)
    before, gradients, after = before.float(), (gradients * noise).float(), before - lr * taken
    return before, gradients, after.float(), lr


def drawn(kind: str, turn: int) -> Case:
    """A run with this mistake, or "healthy", and its diagnosis.

    turn: 0 to 3; the first rank is at fault, and the last
    """
    p = random.choice((3, 4, 5))
    first = 1 if kind == "same share" else 0  # of two that read the same, the higher one
    odd = place(turn, first, p - 1)
    twin = random.randrange(int(turn == 1), max(odd, 1))  # not always rank 0
    given = recorded(kind, p, random.randrange(12, 41), random.choice((0.02, 0.1, 0.5)), odd, twin)
    return given, (kind, odd if kind in ("other start", "same share", "left out") else None)


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=drawn,
        each=4,
        describe=lambda before, *_: f"A run of {plural(len(before), 'rank')}",
        healthy="What does a right step make of these weights? Two ranks add in another order, and numbers of 32 bits "
        "are rounded: how near is equal?",
        example=("left out", 2),
    )


@DIAGNOSE.check("a rank that began with other weights", points=2)
def check_start(answer: Answer) -> None:
    """The same gradient, added to something else."""
    _require(
        answer, "other start", "Which ranks have the same weights before the step, and which one has not?"
    )  # fmt: skip


@DIAGNOSE.check("two ranks that read the same share", points=2)
def check_share(answer: Answer) -> None:
    """The step is healthy, and some images count twice."""
    _require(
        answer, "same share", "Shares of one batch have gradients that are alike. When are "
            "they equal, and on which rank is that a mistake?"
    )  # fmt: skip


@DIAGNOSE.check("no average", points=2)
def check_average(answer: Answer) -> None:
    """Every rank goes its own way."""
    _require(
        answer,
        "not averaged",
        "By what did each rank's weights change, divided by the learning rate?",
    )


@DIAGNOSE.check("a sum for a mean", points=2)
def check_sum(answer: Answer) -> None:
    """In the right direction, and too far."""
    _require(
        answer, "summed", "All ranks agree. How long is their step, in means of the gradients?"
    )


@DIAGNOSE.check("a rank whose gradient is left out", points=2)
def check_left_out(answer: Answer) -> None:
    """All ranks agree, on the mean of the others."""
    _require(
        answer, "left out", "All ranks agree, on nearly the right step. Of which ranks' gradients is it the mean?"
    )  # fmt: skip
