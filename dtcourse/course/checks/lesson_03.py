"""The checks of lesson 03: an all-gather on a budget, moments in one message, a transpose over the network."""

from __future__ import annotations

from typing import Any

import torch

from dtcourse.course.checks import Answer, Exercise, require

# --- 1. all-gather ------------------------------------------------------------------------------------------------

GATHER = Exercise(
    "all_gather_on_a_budget",
    lesson="03",
    title="All-gather with send and receive alone",
    takes=("all_gather",),
    target="right at 2, 3, 4 and 5 ranks; each rank sends p - 1 parts, not a byte more",
)


def _gather(all_gather: Any, parts: list[torch.Tensor]) -> torch.Tensor:
    import torch.distributed as dist

    mine = parts[dist.get_rank()].clone()
    out = [torch.full_like(mine, float("nan")) for _ in range(dist.get_world_size())]
    all_gather(out, mine)
    return torch.stack(out)


@GATHER.check("every rank has every part, in its place", points=3)
def check_gathered(answer: Answer) -> None:
    """Also at numbers of ranks that are no power of two."""
    for ranks in (2, 3, 5):
        parts = [torch.randn(4) for _ in range(ranks)]
        run = answer.run(_gather, ranks, parts)
        for rank in range(ranks):
            got = run[rank]
            for place, part in enumerate(parts):
                require(
                    not got[place].isnan().any(),
                    f"with {ranks} ranks, place {place} on rank {rank} was never written. "
                    + (
                        "Who puts a rank's own part into its place?"
                        if place == rank
                        else "Which step should bring it?"
                    ),
                )
                require(
                    torch.equal(got[place], part),
                    f"with {ranks} ranks, place {place} on rank {rank} does not hold rank {place}'s part. "
                    "In step s, whose part comes from the left?",
                )


@GATHER.check("each rank sends p - 1 parts, and nothing else", points=3)
def check_gather_volume(answer: Answer) -> None:
    """Counted message by message, on a backend that sees every one."""
    ranks, elements = 4, 1000
    parts = [torch.randn(elements) for _ in range(ranks)]
    run = answer.run(_gather, ranks, parts, backend="ring", record=True)
    used = sorted(set(run.traffic.operations) - {"send", "recv"})
    require(
        not used,
        f"it calls {', '.join(used)}: build it from send and receive (and their non-blocking forms) alone.",
    )
    budget = (ranks - 1) * elements * 4
    for rank in range(ranks):
        sent = run.traffic.bytes_sent(rank=rank)
        require(
            sent <= budget,
            f"rank {rank} sends {sent:,} bytes; {ranks - 1} parts are {budget:,}. "
            "Does one rank do the work of all, or does a part travel that its receiver has already?",
        )


# --- 2. mean and variance -------------------------------------------------------------------------------------------

MOMENTS = Exercise(
    "mean_and_variance",
    lesson="03",
    title="Mean and variance over all ranks in one message",
    takes=("mean_and_variance",),
    target="relative error below 1e-6 at uneven sizes; one all_reduce of at most 24 bytes",
)


def _moments(mean_and_variance: Any, values: list[torch.Tensor]) -> list[float]:
    import torch.distributed as dist

    mean, variance = mean_and_variance(values[dist.get_rank()].clone())
    return [float(mean), float(variance)]


def _compare_moments(run: Any, values: list[torch.Tensor], hint: str) -> None:
    everything = torch.cat(values).double()
    mean, variance = float(everything.mean()), float(everything.var(unbiased=False))
    for rank in range(len(values)):
        require(
            abs(run[rank][0] - mean) < 1e-6 * (1 + abs(mean)),
            f"the mean on rank {rank} is {run[rank][0]:.6g}; over all {len(everything)} numbers it is {mean:.6g}. "
            "Ranks hold different numbers of values: what has to be summed besides the values themselves?",
        )
        require(
            abs(run[rank][1] - variance) < 1e-6 * variance + 1e-12,
            f"the variance on rank {rank} is {run[rank][1]:.6g}; over all numbers it is {variance:.6g}. {hint}",
        )


@MOMENTS.check("right where ranks hold different numbers of values", points=3)
def check_moments(answer: Answer) -> None:
    """Rank r has another mean and another size."""
    values = [torch.randn(3 + 4 * rank) * (rank + 1) + 5 * rank for rank in range(3)]
    run = answer.run(_moments, 3, values)
    _compare_moments(
        run, values, "The ranks' means differ too, and that spread is part of the variance of all."
    )


@MOMENTS.check("still right where the mean is large against the spread", points=1)
def check_cancellation(answer: Answer) -> None:
    """A difference of two large numbers: the digits have to be there."""
    values = [1000.0 + torch.randn(50) * 0.1 for _ in range(2)]
    run = answer.run(_moments, 2, values)
    _compare_moments(
        run, values, "Small differences of large sums: how many digits does float32 have?"
    )


@MOMENTS.check("one all_reduce of three numbers", points=2)
def check_one_message(answer: Answer) -> None:
    """Counted."""
    values = [torch.randn(5 + rank) for rank in range(3)]
    run = answer.run(_moments, 3, values, backend="ring", record=True)
    for rank in range(3):
        used = {
            name: run.traffic.calls(rank=rank, operation=name) for name in run.traffic.operations
        }
        require(
            used == {"all_reduce": 1},
            f"rank {rank} calls {', '.join(f'{k} {v} times' for k, v in used.items()) or 'nothing'}: one all_reduce is "
            "enough, if what you sum is put into one tensor.",
        )
        # The ring's 2 (p - 1) / p of the vector, which may be unevenly cut: at most what 24 bytes make.
        sent = run.traffic.bytes_sent(rank=rank)
        require(
            sent <= 2 * 2 * 8,
            f"rank {rank} sends {sent} bytes: which three numbers of 8 bytes are enough?",
        )


# --- 3. the transpose -------------------------------------------------------------------------------------------------

TRANSPOSE = Exercise(
    "transpose",
    lesson="03",
    title="A matrix transposed over the network",
    takes=("transpose",),
    target="exact at 2, 3 and 4 ranks; each rank sends (p - 1)/p of its rows, not a byte more",
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
                f"with {ranks} ranks and a {tuple(matrix.shape)} matrix, rank {rank} should end with {tuple(expected.shape)}; "
                f"it has {tuple(got.shape)}.",
            )
            require(
                torch.equal(got, expected),
                f"with {ranks} ranks, rank {rank}'s block has the right shape and wrong values. all_to_all moves whole blocks: "
                "what is still to be done inside each, and where does it land?",
            )


@TRANSPOSE.check("nothing travels that nobody needs", points=2)
def check_transpose_volume(answer: Answer) -> None:
    """(p - 1) / p of the rank's own rows."""
    ranks = 4
    matrix = torch.randn(8 * ranks, 6 * ranks)
    run = answer.run(_transpose, ranks, matrix, backend="ring", record=True)
    budget = matrix.numel() * 4 // ranks * (ranks - 1) // ranks
    for rank in range(ranks):
        sent = run.traffic.bytes_sent(rank=rank)
        require(
            sent <= budget,
            f"rank {rank} sends {sent:,} bytes; what others need of its rows is {budget:,}. "
            "Which collective sends each rank only its own part?",
        )
