"""Gradients through collectives against differences of the loss, in double precision across ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch

NAMES = ["all_reduce", "all_reduce_avg", "all_gather", "reduce_scatter", "reduce_scatter_avg"]
NAMES += ["all_to_all", "all_to_all_uneven", "broadcast", "reduce"]


def largest_error(name: str, library: str) -> tuple[float, float, bool]:
    """(largest |gradient - difference quotient|, largest |gradient|, whether the second derivative is there)."""
    import importlib

    from dtcourse.collectives import autograd

    rank, ranks = dist.get_rank(), dist.get_world_size()
    using: dict[str, Any] = {}
    if library != "default":
        using["using"] = importlib.import_module(library)

    rows = 2 * ranks
    if name == "all_to_all_uneven":
        sends = [rank + r + 1 for r in range(ranks)]
        receives = list(sends)
        sends = [s + (r > rank) for r, s in enumerate(sends)]
        receives = [s + (r < rank) for r, s in enumerate(receives)]
        rows = sum(sends)
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "all_reduce": lambda x: autograd.all_reduce(x, **using),
        "all_reduce_avg": lambda x: autograd.all_reduce(x, dist.ReduceOp.AVG, **using),
        "all_gather": lambda x: autograd.all_gather(x, **using),
        "reduce_scatter": lambda x: autograd.reduce_scatter(x, **using),
        "reduce_scatter_avg": lambda x: autograd.reduce_scatter(x, dist.ReduceOp.AVG, **using),
        "all_to_all": lambda x: autograd.all_to_all(x, **using),
        "all_to_all_uneven": lambda x: autograd.all_to_all(x, receives, sends, **using),
        "broadcast": lambda x: autograd.broadcast(x, src=ranks - 1, **using),
        "reduce": lambda x: autograd.reduce(x, dst=ranks - 1, **using),
    }
    function = functions[name]
    random = torch.Generator().manual_seed(rank)
    x = torch.randn(rows, 2, dtype=torch.float64, generator=random)
    # a transposed layout: gradients have strides as well
    x = x.t().contiguous().t().requires_grad_()

    def loss_here(x: torch.Tensor) -> torch.Tensor:
        y = function(x)
        weight = torch.arange(1.0, y.numel() + 1, dtype=torch.float64).view(y.shape) + rank
        return (weight * y**3).sum() / 10  # not linear, so that a wrong point is noticed too

    (grad,) = torch.autograd.grad(loss_here(x), x, create_graph=True)
    second = grad.requires_grad and bool(torch.autograd.grad(grad.sum(), x)[0].isfinite().all())

    def loss_of_all(x: torch.Tensor) -> float:
        with torch.no_grad():
            loss = loss_here(x).clone()
        dist.all_reduce(loss)
        return loss.item()

    worst, eps = 0.0, 1e-6
    for who in range(ranks):  # each rank's elements in turn; all ranks compute the loss each time
        count = torch.tensor(x.numel())
        dist.broadcast(count, who)
        for i in range(0, int(count), 3):
            quotient = 0.0
            for sign in (1, -1):
                moved = x.detach().clone()
                if rank == who:
                    moved[i // 2, i % 2] += sign * eps
                quotient += sign * loss_of_all(moved) / (2 * eps)
            if rank == who:
                worst = max(worst, abs(quotient - grad[i // 2, i % 2].item()))
    return worst, grad.abs().max().item(), second


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_gradients_are_the_slopes_of_the_loss(ranks: int) -> None:
    def step() -> dict[tuple[str, str], tuple[float, float, bool]]:
        results = {(name, "default"): largest_error(name, "default") for name in NAMES}
        for name in NAMES:
            results[name, "torch.distributed"] = largest_error(name, "torch.distributed")
        for algorithm in ("naive", "tree", "halving_doubling"):
            for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
                results[name, algorithm] = largest_error(name, f"dtcourse.collectives.{algorithm}")
        return results

    run = launch(step, ranks, backend="gloo", device="cpu")
    for rank, results in enumerate(run):
        for name, (error, size, second) in results.items():
            assert error < 1e-6 * max(1.0, size), f"{name} on rank {rank}"
            assert second, f"{name} on rank {rank} cannot be differentiated twice"
    # Not the difference of zeros: some rank's gradient is far from it.
    assert all(max(run[r][name][1] for r in range(ranks)) > 0.1 for name in run[0])


def test_only_the_root_of_a_broadcast_gets_a_gradient_and_it_is_the_sum() -> None:
    def step() -> list[float]:
        from dtcourse.collectives import autograd

        x = torch.ones(2, requires_grad=True)
        (autograd.broadcast(x, src=1) * (1.0 + dist.get_rank())).sum().backward()
        return x.grad.tolist()

    assert list(launch(step, 3, backend="gloo", device="cpu")) == [[0, 0], [6, 6], [0, 0]]


def test_forward_and_backward_are_counted() -> None:
    """all_gather goes back as reduce_scatter, and sends as much."""

    def step() -> list[tuple[str, str, int]]:
        from dtcourse.collectives import autograd, traffic

        x = torch.ones(6, requires_grad=True)
        with traffic.counting() as counted:
            autograd.all_gather(x).sum().backward()
        return sorted(
            (row.operation, row.phase, row.bytes) for row in counted.rows if row.direction == "sent"
        )

    for rows in launch(step, 3, backend="gloo", device="cpu"):
        assert rows == [("all_gather", "forward", 48), ("reduce_scatter", "backward", 48)]


def test_what_has_no_gradient_says_so() -> None:
    def step() -> None:
        from dtcourse.collectives import autograd, pairwise

        x = torch.ones(4, requires_grad=True)
        for words, call in {
            "SUM and AVG, not through MAX": lambda: autograd.all_reduce(x, dist.ReduceOp.MAX),
            "cannot be split evenly over 3": lambda: autograd.reduce_scatter(x),
            "a scalar has none": lambda: autograd.all_gather(x.sum()),
            "has no all_reduce": lambda: autograd.all_reduce(x, using=pairwise),
            "output_split_sizes are needed": lambda: autograd.all_to_all(x, None, [2, 1, 1]),
            "src=9 is not in the group": lambda: autograd.broadcast(x, 9),
        }.items():
            with pytest.raises(ValueError, match=words):
                call()

    launch(step, 3, backend="gloo", device="cpu")


def test_a_backward_is_the_forward_of_its_transpose() -> None:
    """The classes that a lesson shows are the ones that are used: what each leaves in the graph says so."""

    def step() -> list[tuple[str, str]]:
        from dtcourse.collectives import autograd

        found = []
        for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
            x = torch.ones(2, requires_grad=True)
            y = getattr(autograd, name)(x)
            (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            found.append((type(y.grad_fn).__name__, type(grad.grad_fn).__name__))
        return found

    pairs = [
        ("AllReduce", "AllReduce"),
        ("AllGather", "ReduceScatter"),
        ("ReduceScatter", "AllGather"),
        ("AllToAll", "AllToAll"),
        ("Broadcast", "Reduce"),
    ]
    expected = [(f"{there}Backward", f"{back}Backward") for there, back in pairs]
    assert list(launch(step, 2, backend="gloo", device="cpu")) == [expected, expected]
