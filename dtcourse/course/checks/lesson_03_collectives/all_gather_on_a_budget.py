"""All-gather with send and receive alone."""

from __future__ import annotations

from typing import Any

import torch

from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.course.judging.forbidden import ALGORITHMS
from dtcourse.plural import plural

GATHER = Exercise(
    "all_gather_on_a_budget",
    lesson="03",
    title="All-gather with send and receive alone",
    takes=("all_gather",),
    target="right at 2, 3, 4 and 5 ranks; each rank sends p - 1 parts, not a byte more",
    forbidden=(*ALGORITHMS,),
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
                    f"with {plural(ranks, 'rank')}, place {place} on rank {rank} was never written. "
                    + (
                        "Who puts a rank's own part into its place?"
                        if place == rank
                        else "Which step should bring it?"
                    ),
                )
                require(
                    torch.equal(got[place], part),
                    f"with {plural(ranks, 'rank')}, place {place} on rank {rank} does not hold rank {place}'s part. "
                    "In step s, whose part comes from the left?",
                )


@GATHER.check("each rank sends p - 1 parts, and nothing else", points=3, needs=("check_gathered",))
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
