"""Sixteen bits, one rounding."""

from __future__ import annotations

import math
import random
from typing import Any

import torch

from dtcourse.course.judging import Answer, Each, Exercise, require, require_received
from dtcourse.course.judging.forbidden import ALGORITHMS
from dtcourse.plural import plural

ALL_REDUCE = Exercise(
    "all_reduce_16",
    lesson="14b",
    title="Sixteen bits, one rounding",
    takes=("all_reduce_16",),
    target="half a unit in the last place, for the bytes of a bfloat16 ring, at 2, 3 and 4 ranks",
    forbidden=(
        *ALGORITHMS,
        "dtcourse.memory",
    ),
)


def _reduce(all_reduce_16: Any, x: torch.Tensor) -> torch.Tensor:
    all_reduce_16(x)
    return x


@ALL_REDUCE.check("one rounding, the same on all ranks", points=3)
def check_one_rounding(answer: Answer) -> None:
    """At most half a unit in the last place from the exact sum."""
    for ranks in (2, 3, 4):
        # Never a multiple of the ranks: who leaves the last numbers out would be right by luck.
        n = ranks * random.randrange(70, 100) + random.randrange(1, ranks)
        values = (torch.randn(ranks, n) + random.choice((-1, 1))).bfloat16()
        run = answer.run(_reduce, ranks, Each(list(values)))
        exact = values.double().sum(0)
        unit = torch.exp2(exact.abs().clamp_min(1e-30).log2().floor() - 7)
        for rank in range(ranks):
            got = run[rank]
            require(
                isinstance(got, torch.Tensor) and got.shape == (n,) and got.dtype == torch.bfloat16,
                f"with {plural(ranks, 'rank')} and {n} numbers, x should still be {n} bfloat16 numbers. Sum in "
                "place: x.copy_(...).",
            )
            off = ((got.double() - exact).abs() / unit).max().item()
            require(
                not torch.equal(got, values[rank]),
                f"with {plural(ranks, 'rank')}, rank {rank}'s x is as it was before: the sum has to be written into x.",
            )
            require(
                off <= 0.5 + 1e-3,
                f"with {plural(ranks, 'rank')} and {n} numbers, rank {rank} is up to {off:.3g} units in the last "
                "place from the exact sum; one rounding makes at most 0.5. Where else is something rounded to "
                "bfloat16 (or left out)?",
            )
            require(
                torch.equal(got, run[0]),
                f"with {plural(ranks, 'rank')}, rank {rank} and rank 0 hold different bits: after an all-reduce all "
                "are the same.",
            )


@ALL_REDUCE.check(
    "no more bytes than a ring sends in bfloat16", points=2, needs=("check_one_rounding",)
)
def check_bytes(answer: Answer) -> None:
    """2 (p - 1) ceil(n / p) numbers of 2 bytes a rank."""
    for ranks, n in ((2, 1001), (3, 2000 + random.randrange(3))):
        values = torch.randn(ranks, n).bfloat16()
        run = answer.run(_reduce, ranks, Each(list(values)), backend="ring", record=True)
        budget = 2 * (ranks - 1) * math.ceil(n / ranks) * 2
        for rank in range(ranks):
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent <= budget,
                f"with {plural(ranks, 'rank')} and {n} numbers, rank {rank} sends {sent:,} bytes; a bfloat16 ring "
                f"sends {budget:,}. "
                + (
                    "Is it float32 that travels?"
                    if sent <= 2.1 * budget and sent > 1.6 * budget
                    else "Does each rank need everybody's whole vector, or only a part of it?"
                ),
            )
            require_received(
                f"with {plural(ranks, 'rank')}, rank {rank}",
                run.traffic.bytes_received(rank),
                2 * n,
            )
