"""Logs of runs whose loss falls, drawn anew each time: norms before and after clipping. Which is broken, since when?"""

from __future__ import annotations

import random

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require_kind

DIAGNOSE = Exercise(
    "diagnose_clipping",
    lesson="08b",
    title="Which run clips wrongly, and since when?",
    takes=("diagnose_clipping",),
    target="40 of 40 runs, of 2 to 4 ranks, drawn anew each time",
)

HEALTHY = (
    "Which gradients are long there: the ranks' own ones, or their mean? And how exact are the log's norms, and "
    "PyTorch's 1e-6 beside the norm?"
)
KINDS = ("early", "late", "by shard", "sum's norm", "same samples")
EACH = 4  # runs of a kind, and as many healthy ones beside them
# Norms: of each rank's gradient, by step; of the ranks' mean; of what the optimizer took; and max_norm.
Log = tuple[list[list[float]], list[float], list[float], float]
Diagnosis = tuple[str, int | None]
STEPS, SAMPLES, LR = 7, 4, 0.05


def clip(g: Tensor, limit: float, added: float = 0.0) -> Tensor:
    """`g`, cut to the limit where it is longer."""
    return g * min(1.0, limit / (g.norm().item() + added))


def taken(kind: str, own: Tensor, limit: float, added: float = 0.0) -> Tensor:
    """What a run of this kind takes for a step, from each rank's gradient: (ranks, n)."""
    mean = own.mean(0)
    if kind == "early":
        return torch.stack([clip(g, limit, added) for g in own]).mean(0)
    if kind == "late":
        return mean
    if kind == "by shard":
        return torch.cat([clip(part, limit, added) for part in mean.tensor_split(len(own))])
    if kind == "sum's norm":
        return clip(own.sum(0), limit, added) / len(own)
    return clip(mean, limit, added)


def logged(norm: float) -> float:
    """As a log has it: right to 1e-5 of it."""
    return norm * (1 + random.uniform(-1e-5, 1e-5))


def trained(kind: str, ranks: int) -> tuple[Log, Diagnosis] | None:
    """Linear regression by that many ranks, of which some steps have long gradients; None where no log could tell."""
    features, limit = random.randint(5, 9), random.uniform(4.0, 9.0)
    long = random.sample(range(1, STEPS), 2)
    make = torch.Generator().manual_seed(random.randrange(2**31))
    wanted = torch.randn(features, generator=make, dtype=torch.double)
    now, added = torch.zeros_like(wanted), random.choice((0.0, 1e-6))
    log: Log = ([], [], [], limit)
    first = None
    for step in range(STEPS):
        x = torch.randn(ranks, SAMPLES, features, generator=make, dtype=torch.double)
        x *= 3.0 if step in long else 0.7
        alike = kind == "same samples" and step >= min(long)
        if alike:
            x = x[:1].expand_as(x)
        own = 2 * torch.einsum("rs,rsn->rn", x @ (now - wanted), x) / SAMPLES
        right, took = taken("healthy", own, log[3], added), taken(kind, own, log[3], added)
        off = abs(took.norm() / right.norm() - 1).item()
        if first is None and (alike or off > 0.02):
            if kind in ("early", "by shard") and unclear(own, took, log[3]):
                return None
            first = step
        elif first is None and off > 1e-5:
            return None
        log[0].append([logged(g.norm().item()) for g in own])
        log[1].append(logged(own.mean(0).norm().item()))
        log[2].append(logged(took.norm().item()))
        now = now - LR * took
    if kind == "healthy":
        return log, ("healthy", None)
    return (log, (kind, first)) if first is not None else None


def unclear(own: Tensor, took: Tensor, limit: float) -> bool:
    """Whether another mistake would leave nearly the same norm."""
    mean = own.mean(0)
    others = (limit / len(own), mean.norm().item())
    return any(abs(took.norm().item() / other - 1) < 0.02 for other in others)


def drawn(kind: str, turn: int) -> tuple[Log, Diagnosis]:
    """A run of 2, 3 or 4 ranks of which a log can tell what is wrong."""
    while True:
        if found := trained(kind, 2 + turn % 3):
            return found


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=drawn,
        each=EACH,
        describe=lambda own, *_: f"A run of {len(own[0])} ranks and {len(own)} steps",
        healthy=HEALTHY,
        example=("early", 2),
    )


@DIAGNOSE.check("clipped before the average", points=2)
def check_early(answer: Answer) -> None:
    """Each rank by its own norm."""
    _require(
        answer,
        "early",
        "How long can the mean of gradients be that were clipped one by one, and in which step is it first too short?",
    )


@DIAGNOSE.check("clipped after the step", points=2)
def check_late(answer: Answer) -> None:
    """The optimizer took the gradient as it was."""
    _require(answer, "late", "How long is what the optimizer took there, beside the ranks' mean?")


@DIAGNOSE.check("each shard by its own norm", points=2)
def check_shard(answer: Answer) -> None:
    """Each part of the mean is at most max_norm long."""
    _require(
        answer,
        "by shard",
        "Each part is at most max_norm long there. How long can the whole be, and is it all of the mean?",
    )


@DIAGNOSE.check("the norm of the sum", points=2)
def check_sum(answer: Answer) -> None:
    """Clipped before it is divided by the number of ranks."""
    _require(
        answer,
        "sum's norm",
        "The sum is ranks times as long as the mean. When is it clipped, and how long is it after the division?",
    )


@DIAGNOSE.check("the same samples on all ranks", points=2)
def check_same(answer: Answer) -> None:
    """Clipping is as it should be."""
    _require(
        answer,
        "same samples",
        "Clipping is right there. How large is the noise between the ranks, step by step?",
    )
