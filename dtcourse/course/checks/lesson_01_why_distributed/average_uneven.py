"""The gradient of uneven shares."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dtcourse.course.judging import Answer, Each, Exercise, require

UNEVEN = Exercise(
    "average_uneven",
    lesson="01",
    title="The gradient of uneven shares",
    takes=("average_uneven",),
    target="gradient error below 1e-6 at 1, 2, 3 and 4 ranks, empty shares too; at most 2 collectives per step",
    forbidden=(
        "torch.nn.parallel",
        "dtcourse.parameters",
        "dtcourse.data_parallel",
    ),
)


class _Net(nn.Module):
    """Three layers in 64 bits, the middle one frozen, weights given by the judge."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(w.clone()) for w in weights])
        self.weights[1].requires_grad_(False)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = torch.tanh(x @ weight)
        return ((x - y) ** 2).mean()


def _uneven(
    average_uneven: Any, weights: list[torch.Tensor], share: Any
) -> list[torch.Tensor | None]:
    model = _Net(weights)
    x, y = share
    if len(x):  # as in a real loop: a rank without images has nothing to go backward through
        model.loss(x, y).backward()
    average_uneven(model, len(x))
    return [p.grad for p in model.parameters()]


def _draw(sizes: list[int]) -> tuple[list[torch.Tensor], list[Any], list[torch.Tensor | None]]:
    weights = [torch.randn(a, b, dtype=torch.float64) / 2 for a, b in ((5, 7), (7, 6), (6, 2))]
    x, y = (
        torch.randn(sum(sizes), 5, dtype=torch.float64),
        torch.randn(sum(sizes), 2, dtype=torch.float64),
    )
    whole = _Net(weights)
    whole.loss(x, y).backward()
    shares = list(zip(x.split(sizes), y.split(sizes), strict=True))
    return (
        weights,
        [(a.clone(), b.clone()) for a, b in shares],
        [p.grad for p in whole.parameters()],
    )


def _compare(answer: Answer, sizes: list[int]) -> None:
    weights, shares, right = _draw(sizes)
    run = answer.run(_uneven, len(sizes), weights, Each(shares), timeout=8.0)
    for rank, gradients in enumerate(run):
        where = f"With {sizes} images on the ranks, rank {rank}"
        for number, (got, want) in enumerate(zip(gradients, right, strict=True)):
            if want is None:
                require(
                    got is None,
                    f"{where} has a gradient for a frozen parameter: leave those alone.",
                )
                continue
            require(
                got is not None,
                f"{where} has no gradient for parameter {number}. It had "
                "no images, but it takes the same optimizer step as all others, so it needs the same gradient.",
            )
            error = ((got - want).abs().max() / want.abs().max()).item()
            ratio = ((got * want).sum() / (want * want).sum()).item()
            even = (got / ratio - want).abs().max() / want.abs().max() < 1e-6 if ratio else False
            hint = (
                f"It is {ratio:.3g} times the right one: what should the sum be divided by?"
                if even
                else "Should an image on a rank with few of them count more than one on a rank with many?"
            )
            require(
                error < 1e-6,
                f"{where}: the gradient of parameter {number} is off by {error:.0%} of its size. {hint}",
            )


@UNEVEN.check("equal shares: the gradient of the whole batch, at 1, 2 and 3 ranks", points=1)
def check_equal(answer: Answer) -> None:
    """The case of the lesson."""
    for world_size in (1, 2, 3):
        _compare(answer, [6] * world_size)


@UNEVEN.check("uneven shares: every image counts the same", points=3)
def check_uneven(answer: Answer) -> None:
    """Weighted by the number of images."""
    _compare(answer, [9, 2])
    _compare(answer, [1, 7, 3, 5])


@UNEVEN.check("a rank without any images takes part, and gets the gradient", points=2)
def check_empty(answer: Answer) -> None:
    """Empty shares neither hang nor leave a rank behind."""
    _compare(answer, [5, 0, 8])


@UNEVEN.check("at most two collectives per step, whatever the number of parameters", points=2)
def check_calls(answer: Answer) -> None:
    """Counted by what left the rank."""
    weights, shares, _ = _draw([4, 2])
    run = answer.run(_uneven, 2, weights, Each(shares), record=True)
    calls = run.traffic.calls(rank=0)
    require(
        1 <= calls <= 2,
        f"Rank 0 called {calls} collectives in one step; 2 are "
        "enough for any model. Each call costs its latency again: can the gradients travel in one vector?",
    )
