"""Mean and variance over all ranks in one message."""

from __future__ import annotations

from typing import Any

import torch

from dtcourse.course.judging import Answer, Each, Exercise, require
from dtcourse.course.judging.forbidden import ALGORITHMS

MOMENTS = Exercise(
    "mean_and_variance",
    lesson="03",
    title="Mean and variance over all ranks in one message",
    takes=("mean_and_variance",),
    target="relative error below 1e-6 at uneven sizes; one all_reduce of at most 24 bytes",
    forbidden=(*ALGORITHMS,),
)


def _moments(mean_and_variance: Any, own: torch.Tensor) -> list[float]:
    mean, variance = mean_and_variance(own)
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
    run = answer.run(_moments, 3, Each(values))
    _compare_moments(
        run, values, "The ranks' means differ too, and that spread is part of the variance of all."
    )


@MOMENTS.check("still right where the mean is large against the spread", points=1)
def check_cancellation(answer: Answer) -> None:
    """A difference of two large numbers: the digits have to be there."""
    values = [1000.0 + torch.randn(50) * 0.1 for _ in range(2)]
    run = answer.run(_moments, 2, Each(values))
    _compare_moments(
        run, values, "Small differences of large sums: how many digits does float32 have?"
    )


@MOMENTS.check("one all_reduce of three numbers", points=2, needs=("check_moments",))
def check_one_message(answer: Answer) -> None:
    """Counted."""
    values = [torch.randn(5 + rank) for rank in range(3)]
    run = answer.run(_moments, 3, Each(values), backend="ring", record=True)
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
