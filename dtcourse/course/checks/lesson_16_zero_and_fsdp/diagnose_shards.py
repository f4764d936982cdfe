"""Shards and gradients of runs whose loss falls, drawn anew for each check: which is broken, and how?"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require_diagnoses

DIAGNOSE = Exercise(
    "diagnose_shards",
    lesson="16",
    title="Which run is broken, and how?",
    takes=("diagnose_shards",),
    target="24 of 24 runs, of 2 to 4 ranks, drawn anew each time",
)

Diagnosis = tuple[str, int | None]
Run = tuple[list[list[Tensor]], list[list[Tensor]], float, float]  # by step and rank; lr, max_norm


class Job(NamedTuple):
    """What is drawn. rank, since: where and from which step on, of a mistake of one rank."""

    ranks: int
    part: int
    samples: int
    steps: int
    rank: int
    since: int
    lr: float
    max_norm: float
    seed: int


def drawn(ranks: int, draw: Random) -> Job:
    """A job of that many ranks. A mistake of one rank is not the first one's, and not in the first step."""
    part, samples, steps = draw.randint(2, 4), draw.randint(4, 8), draw.randint(4, 6)
    rank, since = draw.randrange(1, ranks), draw.randrange(1, steps)
    lr, max_norm = draw.uniform(0.02, 0.06), draw.uniform(0.5, 1.5)
    return Job(ranks, part, samples, steps, rank, since, lr, max_norm, draw.getrandbits(32))


def trained(kind: str, job: Job) -> Run:
    """Linear regression on the shards of a job, with a mistake."""
    ranks, part = job.ranks, job.part
    make = torch.Generator().manual_seed(job.seed)
    x = torch.randn(ranks, job.samples, ranks * part, generator=make, dtype=torch.double)
    y = x.sum(2) + torch.randn(ranks, job.samples, generator=make, dtype=torch.double)
    now = list(torch.zeros(ranks * part, dtype=torch.double).split(part))
    shards, gradients = [now], []
    for step in range(job.steps):
        whole = torch.cat(now)
        own = [2 * x[r].T @ (x[r] @ whole - y[r]) / job.samples for r in range(ranks)]
        mean = torch.stack(own).mean(0)
        mine = [mean[r * part : (r + 1) * part] for r in range(ranks)]
        if kind == "no reduce" and step >= job.since:
            mine[job.rank] = own[job.rank][job.rank * part : (job.rank + 1) * part]
        if kind == "parts shifted":
            mine = [*mine[1:], mine[0]]
        norms = [float(mean.norm())] * ranks
        if kind == "plain clipping":
            norms = [float(g.norm()) for g in mine]
        scales = [min(1.0, job.max_norm / norm) for norm in norms]
        if kind != "early optimizer":
            now = [w - job.lr * s * g for w, s, g in zip(now, scales, mine, strict=True)]
        shards.append(now)
        gradients.append(own)
    return shards, gradients, job.lr, job.max_norm


def cases(kind: str, draw: Random) -> list[tuple[Run, Diagnosis]]:
    """Runs of 2, 3 and 4 ranks with the mistake, and as many without."""
    return [
        (trained(one, job), (one, job.rank if one == "no reduce" else None))
        for one in (kind, "healthy")
        for job in (drawn(ranks, draw) for ranks in (2, 3, 4))
    ]


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_diagnoses(
        answer,
        cases(kind, Random()),
        describe=lambda shards, gradients, *_: (
            f"A run of {len(shards[0])} ranks and {len(gradients)} steps"
        ),
        hint=hint,
        healthy="Which step would one process have taken with the samples of all ranks, and how far from it is "
        "rounding?",
        example=("no reduce", 2),
        shuffled=True,
    )


@DIAGNOSE.check("an optimizer that was made too early", points=1)
def check_not_updated(answer: Answer) -> None:
    """The optimizer was built before sharding."""
    _require(answer, "early optimizer", "Which shards move at all?")


@DIAGNOSE.check("clipped rank by rank", points=3)
def check_local_norm(answer: Answer) -> None:
    """Each rank's step has the right direction, and a length of its own."""
    _require(
        answer,
        "plain clipping",
        "Every part goes along the mean gradient. By which norm has each rank divided its own?",
    )


@DIAGNOSE.check("a reduce-scatter left out", points=3)
def check_own_gradient(answer: Answer) -> None:
    """From some step on."""
    _require(
        answer,
        "no reduce",
        "Whose part moves along another gradient than the others, and which? No such run goes wrong in its first step.",
    )


@DIAGNOSE.check("parts in another order", points=2)
def check_wrong_part(answer: Answer) -> None:
    """The chunks of the reduce-scatter were in another order."""
    _require(answer, "parts shifted", "Along which run of the mean gradient does each part move?")
