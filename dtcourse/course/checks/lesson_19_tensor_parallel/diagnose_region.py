"""A parallel region that is right, or wrong in one of four ways: which, from what its ranks hold."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, call_each, require_word

DIAGNOSE = Exercise(
    "diagnose_region",
    lesson="19",
    title="Which region is broken, and how?",
    takes=("diagnose_region",),
    target="24 of 24 regions on 2 to 6 ranks",
)

KINDS = ("healthy", "bias counted p times", "dx not summed", "dx p times too large", "masks differ")
Region = tuple[dict[str, Tensor], list[dict[str, Tensor]]]
Cases = list[tuple[Region, str]]


def region(kind: str, ranks: int, scale: float = 1.0, dropout: float = 0.0) -> Region:
    """What one process and each rank hold of y = dropout(gelu(x up) down + bias) and of x's gradient, float32.

    The sums are really made of the ranks' parts, so that a healthy region is off by rounding.
    """
    N, D, H = 6, 4, 60
    x, up, down = torch.randn(N, D), torch.randn(D, H), scale * torch.randn(H, D) / 8
    bias = scale * torch.randn(D)
    masks = [(torch.rand(N, D) >= dropout) / (1 - dropout) for _ in range(ranks)]
    dy = torch.randn(N, D)

    def passed(up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
        mine = x.clone().requires_grad_()
        y = F.gelu(mine @ up) @ down
        (dx,) = torch.autograd.grad(y, mine, dy)
        return y.detach(), dx

    parts = [passed(*w) for w in zip(up.chunk(ranks, 1), down.chunk(ranks, 0), strict=True)]
    y = torch.stack([part for part, _ in parts]).sum(0)
    dx = torch.stack([part for _, part in parts]).sum(0)
    whole, whole_dx = passed(up, down)
    truth = {"y": (whole + bias) * masks[0], "dx": whole_dx, "bias": bias}
    held = []
    for rank in range(ranks):
        added = ranks * bias if kind == "bias counted p times" else bias
        mask = masks[rank if kind == "masks differ" else 0]
        mine = parts[rank][1] if kind == "dx not summed" else dx
        mine = ranks * dx if kind == "dx p times too large" else mine
        held.append({"y": (y + added) * mask, "dx": mine.clone()})
    return truth, held


def _cases(kinds: tuple[str, ...]) -> Cases:
    """Few ranks and many, large numbers and small ones, with dropout and without."""
    cases: Cases = []
    for kind in kinds:
        for ranks, scale in ((2, 1.0), (random.randint(3, 5), 1e-3), (6, 300.0)):
            dropout = 0.5 if kind == "masks differ" else random.choice((0.0, 0.3))
            cases.append((region(kind, ranks, scale, dropout), kind))
    return cases


def _require(answer: Answer, kinds: tuple[str, ...], hints: dict[str, str]) -> None:
    cases = _cases(kinds)
    said = call_each(answer, [one for one, _ in cases], shuffled=True)
    for ((_, ranks), right), got in zip(cases, said, strict=True):
        require_word(f"A region on {len(ranks)} ranks", got, right, KINDS, hints[right])


HEALTHY = (
    "Float32 sums in another order differ by rounding, in proportion "
    "to the numbers. How large a difference is one?"
)


@DIAGNOSE.check("healthy, or a bias that counts p times", points=2, needs=("check_masks",))
def check_bias(answer: Answer) -> None:
    """Small numbers and large ones."""
    _require(
        answer,
        KINDS[:2],
        {
            "healthy": HEALTHY,
            KINDS[1]: "y is wrong in the same way on all ranks. By how many times the bias?",
        },
    )


@DIAGNOSE.check("a gradient of x that is no sum, or p times one", points=3, needs=("check_bias",))
def check_dx(answer: Answer) -> None:
    """With a right y."""
    _require(
        answer,
        ("healthy", *KINDS[2:4]),
        {
            "healthy": HEALTHY,
            KINDS[2]: "y is right on all ranks. What do the ranks' gradients of x add up to?",
            KINDS[
                3
            ]: "y is right, and the gradient of x is the same on all ranks. What is its ratio to the right one?",
        },
    )


@DIAGNOSE.check("masks that differ", points=3, needs=("check_bias",))
def check_masks(answer: Answer) -> None:
    """Rank 0's mask is that of one process."""
    _require(
        answer,
        ("healthy", KINDS[1], KINDS[4]),
        {
            "healthy": HEALTHY,
            KINDS[1]: "Its y is wrong in the same way on all ranks: masks are not to blame.",
            KINDS[4]: "One rank alone looks right here. Are the ranks' y copies of each other?",
        },
    )
