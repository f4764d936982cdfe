"""A matrix transposed over the network, and the gradient back through it."""

from __future__ import annotations

from typing import Any

import torch

from dtcourse.course.judging import Answer, Each, Exercise, require
from dtcourse.course.judging.forbidden import ALGORITHMS
from dtcourse.plural import plural

TRANSPOSE = Exercise(
    "transpose",
    lesson="03",
    title="A matrix transposed over the network, and its gradient",
    takes=("transpose",),
    target="exact at 2, 3 and 4 ranks, gradients too; each rank sends (p - 1)/p of its rows, and as much in backward",
    forbidden=(
        *ALGORITHMS,
        "torch.distributed.nn",
        "torch.distributed._functional_collectives",
        "torch.distributed.tensor",
    ),
)


def _transpose(transpose: Any, rows: torch.Tensor) -> torch.Tensor:
    return transpose(rows).detach().contiguous()


def _gradient(transpose: Any, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor | None:
    """The gradient of this rank's rows; the loss is the sum of weights * transposed ** 2 over all ranks."""
    rows.requires_grad_()
    result = transpose(rows)
    if result.requires_grad:
        (weights * result.square()).sum().backward()
    return rows.grad


def _rows(matrix: torch.Tensor, ranks: int) -> Each:
    return Each(matrix.chunk(ranks))


@TRANSPOSE.check("rank r has row block r of the transposed matrix", points=3)
def check_transposed(answer: Answer) -> None:
    """Not square, so that a mistake in the shapes shows."""
    for ranks in (2, 3, 4):
        matrix = torch.randn(2 * ranks, 3 * ranks)
        run = answer.run(_transpose, ranks, _rows(matrix, ranks))
        for rank, expected in enumerate(matrix.t().chunk(ranks)):
            got = run[rank]
            require(
                got.shape == expected.shape,
                f"with {plural(ranks, 'rank')} and a {tuple(matrix.shape)} matrix, rank {rank} should end with "
                f"{tuple(expected.shape)}; it has {tuple(got.shape)}.",
            )
            require(
                torch.equal(got, expected),
                f"with {plural(ranks, 'rank')}, rank {rank}'s block has the right shape and wrong values. "
                "all_to_all moves whole blocks: what is still to be done inside each, and where does it land?",
            )


@TRANSPOSE.check("gradients come back to their rows", points=3, needs=("check_transposed",))
def check_gradient(answer: Answer) -> None:
    """Against one process that has the whole matrix."""
    for ranks in (2, 3):
        matrix = torch.randn(2 * ranks, 3 * ranks, dtype=torch.double)
        weights = torch.randn(3 * ranks, 2 * ranks, dtype=torch.double)
        run = answer.run(_gradient, ranks, _rows(matrix, ranks), _rows(weights, ranks))
        expected = (2 * matrix * weights.t()).chunk(ranks)
        for rank in range(ranks):
            where = f"with {plural(ranks, 'rank')}, rank {rank}'s rows"
            require(
                run[rank] is not None,
                f"{where} have no gradient: PyTorch does not go back through dist's calls by itself. Which class of "
                "torch.autograd lets you write a backward?",
            )
            require(
                torch.allclose(run[rank], expected[rank], rtol=1e-12, atol=1e-12),
                f"{where} have another gradient than in one process, by up to "
                f"{(run[rank] - expected[rank]).abs().max():.3g}. "
                "The backward of a collective is its transpose: what is the transpose of a transpose, and on which "
                "rank does each number land?",
            )


@TRANSPOSE.check("nothing travels that nobody needs", points=2, needs=("check_transposed",))
def check_transpose_volume(answer: Answer) -> None:
    """(p - 1) / p of the rank's own rows, and as much in backward."""
    ranks = 4
    matrix = torch.randn(8 * ranks, 6 * ranks)
    budget = matrix.numel() * 4 // ranks * (ranks - 1) // ranks
    # "naive" sends each block straight to whom it is for; a tree's scatter hands on what others need.
    rows, weights = _rows(matrix, ranks), _rows(torch.ones(6 * ranks, 8 * ranks), ranks)
    there = answer.run(_transpose, ranks, rows, backend="naive", record=True)
    both = answer.run(_gradient, ranks, rows, weights, backend="naive", record=True)
    for run, times, way in ((there, 1, "forward"), (both, 2, "forward and backward")):
        for rank in range(ranks):
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent <= times * budget,
                f"rank {rank} sends {sent:,} bytes in {way}; what others need is {times * budget:,}. "
                "Which collective sends each rank only its own part?",
            )
            came = run.traffic.bytes_received(rank=rank)
            require(
                came >= times * budget,
                f"rank {rank} receives {came:,} bytes in {way}; it has {times * budget:,} to get from others. "
                "Where does the rest come from?",
            )
