"""Runs with PowerSGD, drawn anew each time: what each rank sent of a matrix, and what is wrong with it."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require_kind
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_low_rank",
    lesson="12b",
    title="What is wrong with these factors?",
    takes=("diagnose_low_rank",),
    target="24 of 24 runs of 3 to 5 ranks, drawn anew each time",
    forbidden=("dtcourse.compression", "torch.distributed.algorithms"),
)

Diagnosis = tuple[str, int | None]
# Gradients (T, p, n, m), the first Q (m, r), what each rank sent: (T, p, n, r) and (T, p, m, r).
Run = tuple[Tensor, Tensor, Tensor, Tensor]
EACH = 3  # runs of a kind, and as many healthy ones beside them
PLAIN = 20.0  # the most by which the columns of a summed P differ in length and direction, so that QR is sure
CLEAR = 0.05  # what is wrong is seen in the first two steps by more than this, of a factor's length


def sent_by(
    gradients: Tensor, first: Tensor, *, cold: bool = False, forgets: int = -1, bare: int = -1,
    own: Tensor | None = None, where: int = -1,
) -> tuple[Tensor, Tensor, float]:  # fmt: skip
    """What each rank sends, and the largest condition of a summed P.

    cold:    each step begins with the first Q
    forgets: a rank that adds nothing of what it left out
    bare:    a rank that scales P's columns to length 1, and does not make them orthogonal
    own:     the Q with which rank `where` begins
    """
    ranks = gradients.shape[1]
    qs = [first if own is None or r != where else own for r in range(ranks)]
    left, all_p, all_q, condition = torch.zeros_like(gradients[0]), [], [], 1.0
    for step in gradients:
        wanted = step + left
        p = torch.stack([w @ q for w, q in zip(wanted, qs, strict=True)])
        total = p.sum(0)
        basis = torch.linalg.qr(total).Q
        bases = [total / total.norm(dim=0) if r == bare else basis for r in range(ranks)]
        q = torch.stack([w.T @ b for w, b in zip(wanted, bases, strict=True)])
        mean = q.sum(0) / ranks
        left = torch.stack([w - b @ mean.T for w, b in zip(wanted, bases, strict=True)])
        if forgets >= 0:
            left[forgets] = 0.0
        qs = [first if cold else mean] * ranks
        condition = max(condition, float(torch.linalg.cond(total)))
        all_p.append(p)
        all_q.append(q)
    return torch.stack(all_p), torch.stack(all_q), condition


def draw(kind: str, turn: int) -> tuple[Run, Diagnosis]:
    """A run of that kind, rounded as in single precision.

    turn: of three, one has it on the first rank, one in the middle, one on the last
    """
    make = torch.Generator().manual_seed(random.getrandbits(40))
    while True:
        ranks, steps, r = random.randint(3, 5), random.randint(3, 5), random.randint(2, 3)
        n, m = random.randint(7, 12), random.randint(5, 9)
        where = (0, random.randrange(1, ranks - 1), ranks - 1)[turn]
        common = torch.randn(n, m, generator=make, dtype=torch.double)
        noise = torch.randn(steps, ranks, n, m, generator=make, dtype=torch.double)
        gradients = (common + 0.7 * noise).float().double()
        first, own = torch.randn(2, m, r, generator=make, dtype=torch.double).float().double()
        ways: dict[str, dict[str, Any]] = {
            "healthy": {},
            "cold start": {"cold": True},
            "no feedback": {"forgets": where},
            "another seed": {"own": own, "where": where},
            "not orthogonal": {"bare": where},
        }
        p, q, condition = sent_by(gradients, first, **ways[kind])
        right_p, right_q, _ = sent_by(gradients, first)
        off = max(
            float((a - b).norm() / b.norm())
            for a, b in ((p[:2], right_p[:2]), (q[:2], right_q[:2]))
        )
        if condition < PLAIN and (off > CLEAR or kind == "healthy"):
            named = None if kind in ("healthy", "cold start") else where
            return (gradients, first, p.float().double(), q.float().double()), (kind, named)


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=draw,
        each=EACH,
        describe=lambda gradients, first, *_: (
            f"A run of {plural(gradients.shape[1], 'rank')} and {plural(len(gradients), 'step')}, of rank "
            f"{first.shape[1]}"
        ),
        healthy="What does a right rank send of these gradients, and how far apart are two records of which one is "
        "rounded to single precision?",
        example=("no feedback", 2),
    )


@DIAGNOSE.check("a cold start in each step", points=2)
def check_cold(answer: Answer) -> None:
    """The Q of the step before is never used."""
    _require(
        answer, "cold start", "The first step is as it should be. With which Q does the second one begin?"
    )  # fmt: skip


@DIAGNOSE.check("a rank that forgets what it left out", points=3)
def check_feedback(answer: Answer) -> None:
    """And which."""
    _require(
        answer,
        "no feedback",
        "What does each rank want to send in the second step: its gradient, and what besides?",
    )


@DIAGNOSE.check("a rank that begins with a Q of its own", points=2)
def check_seed(answer: Answer) -> None:
    """It is seen in one step only."""
    _require(
        answer,
        "another seed",
        "From the second step on all ranks have one Q. Which of them sends another first factor in the first step?",
    )


@DIAGNOSE.check("a rank whose P is not orthogonal", points=3)
def check_bare(answer: Answer) -> None:
    """Its first factor is right, and its second one is not."""
    _require(
        answer,
        "not orthogonal",
        "All first factors are right in the first step. By which basis has each rank multiplied for the second one?",
    )
