"""A matrix transposed over the network."""

from __future__ import annotations

from typing import Any

import torch

from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.course.judging.forbidden import ALGORITHMS
from dtcourse.plural import plural

TRANSPOSE = Exercise(
    "transpose",
    lesson="03",
    title="A matrix transposed over the network",
    takes=("transpose",),
    target="exact at 2, 3 and 4 ranks; each rank sends (p - 1)/p of its rows, not a byte more",
    forbidden=(*ALGORITHMS,),
)


def _transpose(transpose: Any, matrix: torch.Tensor) -> torch.Tensor:
    import torch.distributed as dist

    rows = matrix.chunk(dist.get_world_size())[dist.get_rank()].clone()
    return transpose(rows).contiguous()


@TRANSPOSE.check("rank r has row block r of the transposed matrix", points=4)
def check_transposed(answer: Answer) -> None:
    """Not square, so that a mistake in the shapes shows."""
    for ranks in (2, 3, 4):
        matrix = torch.randn(2 * ranks, 3 * ranks)
        run = answer.run(_transpose, ranks, matrix)
        for rank, expected in enumerate(matrix.t().chunk(ranks)):
            got = run[rank]
            require(
                got.shape == expected.shape,
                f"with {plural(ranks, 'rank')} and a {tuple(matrix.shape)} matrix, rank {rank} should end with {tuple(expected.shape)}; "
                f"it has {tuple(got.shape)}.",
            )
            require(
                torch.equal(got, expected),
                f"with {plural(ranks, 'rank')}, rank {rank}'s block has the right shape and wrong values. all_to_all moves whole blocks: "
                "what is still to be done inside each, and where does it land?",
            )


@TRANSPOSE.check("nothing travels that nobody needs", points=2, needs=("check_transposed",))
def check_transpose_volume(answer: Answer) -> None:
    """(p - 1) / p of the rank's own rows."""
    ranks = 4
    matrix = torch.randn(8 * ranks, 6 * ranks)
    # "naive" sends each block straight to whom it is for; a tree's scatter hands on what others need.
    run = answer.run(_transpose, ranks, matrix, backend="naive", record=True)
    budget = matrix.numel() * 4 // ranks * (ranks - 1) // ranks
    for rank in range(ranks):
        sent = run.traffic.bytes_sent(rank=rank)
        require(
            sent <= budget,
            f"rank {rank} sends {sent:,} bytes; what others need of its rows is {budget:,}. "
            "Which collective sends each rank only its own part?",
        )
