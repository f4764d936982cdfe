"""Records of scaled signs with feedback, drawn anew each time: what is wrong with them, and on which rank?"""

from __future__ import annotations

import random

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require_kind
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_one_bit",
    lesson="11b",
    title="Which run is broken, and how?",
    takes=("diagnose_one_bit",),
    target="24 of 24 runs of 3 to 5 ranks, drawn anew each time",
    forbidden=("dtcourse.compression", "dtcourse.course.compressed_replicas"),
)

Diagnosis = tuple[str, int | None]
Run = tuple[Tensor, Tensor, Tensor, list[int], float, float]
EACH = 3  # runs of a kind, and as many healthy ones beside them


def scaled(x_PN: Tensor, sizes: list[int]) -> Tensor:
    """Signs, times the mean magnitude of their tensor."""
    parts = x_PN.split(sizes, dim=1)
    return torch.cat(
        [x.abs().mean(1, keepdim=True) * torch.where(x < 0, -1.0, 1.0) for x in parts], dim=1
    )


def recorded(
    kind: str, culprit: int, gradients: Tensor, sizes: list[int], lr: float, momentum: float
) -> tuple[Tensor, Tensor]:
    """What each rank sends, (T, p, n), and how far the weights move, (T, n)."""
    _, p, n = gradients.shape
    one = torch.arange(p)[:, None] == culprit
    velocity, left = torch.zeros(p, n, dtype=torch.double), torch.zeros(p, n, dtype=torch.double)
    late, sent, moved = torch.zeros(n, dtype=torch.double), [], []
    for g in gradients:
        velocity = g if kind == "momentum after" else momentum * velocity + g
        wanted = velocity + left
        out = scaled(wanted, sizes)
        if kind == "one scale":
            out = torch.where(one, scaled(wanted, [n]), out)
        left = wanted - out
        if kind == "wrong residual":
            left = torch.where(one, velocity - out, left)
        counted = torch.where(one, -out, out) if kind == "turned round" else out
        update = counted.mean(0)
        if kind == "momentum after":
            update = late = momentum * late + update
        sent.append(out)
        moved.append(lr * update)
    return torch.stack(sent), torch.stack(moved)


def draw(kind: str) -> tuple[Run, Diagnosis]:
    """A run of that kind."""
    p, steps = random.randint(3, 5), random.randint(8, 14)
    sizes = [random.randint(3, 9) for _ in range(random.randint(2, 4))]
    n, culprit = sum(sizes), random.randrange(p)
    lr, momentum = random.uniform(0.01, 0.5), random.uniform(0.5, 0.95)
    each = [random.uniform(0.5, 1) * 10**-i for i in range(len(sizes))]
    scale = torch.tensor(each, dtype=torch.double).repeat_interleave(torch.tensor(sizes))
    make = torch.Generator().manual_seed(random.getrandbits(60))
    common = torch.randn(1, 1, n, generator=make, dtype=torch.double)
    gradients = common + torch.randn(steps, p, n, generator=make, dtype=torch.double)
    gradients = gradients * scale
    sent, moved = recorded(kind, culprit, gradients, sizes, lr, momentum)
    named = None if kind in ("healthy", "momentum after") else culprit
    return (gradients, sent, moved, sizes, lr, momentum), (kind, named)


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=lambda one, _: draw(one),
        each=EACH,
        describe=lambda gradients, _sent, _moved, sizes, *_: (
            f"A run of {plural(gradients.shape[1], 'rank')}, {plural(len(gradients), 'step')} and "
            f"{plural(len(sizes), 'tensor')}"
        ),
        healthy="Here each rank sends what it should, and the weights move by the mean of it. What does a rank add up "
        "before it takes the signs, and which numbers share a scale?",
        example=("one scale", 2),
    )


@DIAGNOSE.check("a residual of the wrong tensor", points=3)
def check_residual(answer: Answer) -> None:
    """Of the momentum, and not of the sum that was compressed."""
    _require(
        answer,
        "wrong residual",
        "The first two steps may be right. What is left of the sum that this rank compressed, and what does it add in "
        "the step after?",
    )


@DIAGNOSE.check("one scale for all tensors", points=2)
def check_scale(answer: Answer) -> None:
    """On one rank."""
    _require(answer, "one scale", "Which magnitudes does each rank send, tensor by tensor?")


@DIAGNOSE.check("momentum after the compression", points=3)
def check_momentum(answer: Answer) -> None:
    """On all ranks."""
    _require(
        answer,
        "momentum after",
        "Of what do ranks send signs, and is what the weights move by the mean of what was sent, or more?",
    )


@DIAGNOSE.check("signs that are counted the wrong way round", points=2)
def check_turned(answer: Answer) -> None:
    """Those of one rank."""
    _require(
        answer,
        "turned round",
        "What the ranks send is right. In which sum of it have the weights moved?",
    )
