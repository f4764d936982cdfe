"""Weights and gradients of jobs whose loss falls, drawn anew each time: what did the job's author do wrong?"""

from __future__ import annotations

import random

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require_kind

DIAGNOSE = Exercise(
    "diagnose_training",
    lesson="06b",
    title="Which job is broken, and how?",
    takes=("diagnose_training",),
    target="40 of 40 jobs of 3 to 6 ranks, drawn anew each time",
)

EACH = 4  # jobs of a kind, and as many healthy ones beside them
Diagnosis = tuple[str, int | None]
# By step and rank: weights, gradients, numbers of samples; the learning rate.
Job = tuple[list[list[Tensor]], list[list[Tensor]], list[list[int]], float]
HEALTHY = (
    "Does every sample of a step weigh the same here, on whatever rank it is? "
    "And which of the differences is rounding?"
)


def trained(kind: str, turn: int) -> tuple[Job, Diagnosis]:
    """A linear regression by plain SGD on some ranks, with a mistake or without.

    turn: 0 to EACH - 1; in every second job ranks have unlike numbers of samples
    """
    ranks, features, steps = random.randint(3, 6), random.randint(3, 6), random.randint(3, 5)
    lr = random.uniform(0.01, 0.05)
    # Rank 0 is the odd one once at least, and a late step the wrong one.
    odd = random.randrange(ranks) if turn else 0
    since = random.randrange(steps) if turn else steps - 1
    start = torch.randn(features, dtype=torch.double)
    now = [start.clone() for _ in range(ranks)]
    if kind == "start":
        now[odd] = now[odd] + 1e-3 * torch.randn(features, dtype=torch.double)
    weights, gradients, counts = [now], [], []
    for step in range(steps):
        count = [random.randint(2, 9)] * ranks
        if kind == "unweighted" or (turn % 2 and kind != "same part"):
            count = random.sample(range(2, 12), ranks)
        own = []
        for rank, number in enumerate(count):
            if kind != "same part" or rank == 0:
                x = torch.randn(number, features, dtype=torch.double)
            own.append(2 * x.T @ (x @ now[rank] - x.sum(1)) / number)
        share = torch.tensor(count, dtype=torch.double) / sum(count)
        mean = (share[:, None] * torch.stack(own)).sum(0)
        if kind == "unweighted":
            mean = torch.stack(own).mean(0)
        taken = [mean * ranks if kind == "sum" else mean] * ranks
        if kind == "no_sync" and step == since:
            taken = own
        # Another order of sums: each job rounds in its own way.
        noise = 1 + 1e-13 * torch.randn(features, dtype=torch.double)
        now = [w - lr * g * noise for w, g in zip(now, taken, strict=True)]
        weights.append(now)
        gradients.append(own)
        counts.append(count)
    where = {"start": odd, "no_sync": since}.get(kind)
    return (weights, gradients, counts, lr), (kind, where)


def _described(
    weights: list[list[Tensor]], gradients: list[list[Tensor]], counts: list[list[int]], lr: float
) -> str:
    unlike = " of unlike numbers of samples" if len(set(counts[0])) > 1 else ""
    return f"A job of {len(weights[0])} ranks{unlike} and {len(gradients)} steps"


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=trained,
        each=EACH,
        describe=_described,
        healthy=HEALTHY,
        example=("no_sync", 2),
    )


@DIAGNOSE.check("an old checkpoint on one rank", points=2)
def check_start(answer: Answer) -> None:
    """Its steps are right, and its weights stay apart."""
    _require(answer, "start", "Whose weights are unlike all others', and from when on?")


@DIAGNOSE.check("nobody divides", points=2)
def check_sum(answer: Answer) -> None:
    """All take the same step, and it is too long."""
    _require(answer, "sum", "How long is a step, in mean gradients times the learning rate?")


@DIAGNOSE.check("a step inside no_sync", points=2)
def check_no_sync(answer: Answer) -> None:
    """One of several steps."""
    _require(
        answer, "no_sync",
        "Along which gradient does each rank step, and in which steps? Not every job goes wrong in its "
        "first step.",
    )  # fmt: skip


@DIAGNOSE.check("parts of unlike size, averaged as if they were alike", points=2)
def check_unweighted(answer: Answer) -> None:
    """Every rank weighs the same, so samples do not."""
    _require(
        answer, "unweighted", "How much does one sample of each rank weigh in the step that is taken?"
    )  # fmt: skip


@DIAGNOSE.check("no sampler", points=1)
def check_same_part(answer: Answer) -> None:
    """Weights and steps are as they should be."""
    _require(
        answer, "same part",
        "Every step is right. Compare the gradients of the ranks: what does each add to the mean?"
    )  # fmt: skip
