"""All-gather in place, both ways round a ring."""

from __future__ import annotations

from typing import Any

import torch

from dtcourse.course.judging import Answer, Each, Exercise, require
from dtcourse.course.judging.forbidden import ALGORITHMS
from dtcourse.emulation import EmulatedNetwork
from dtcourse.plural import plural

GATHER = Exercise(
    "all_gather_both_ways",
    lesson="03",
    title="All-gather both ways round a ring",
    takes=("all_gather_both_ways",),
    target="right at 2, 3, 4, 5 and 6 ranks; p - 1 parts sent per rank, to neighbours only; the time of p/2 messages, "
    "rounded down",
    forbidden=(*ALGORITHMS,),
)

SECOND = EmulatedNetwork(latency=1.0)  # of the virtual clock


def _gather(all_gather_both_ways: Any, part: torch.Tensor) -> tuple[torch.Tensor, float]:
    import torch.distributed as dist

    from dtcourse import emulation

    rank, ranks = dist.get_rank(), dist.get_world_size()
    flat = torch.full((ranks * len(part),), float("nan"))
    flat.chunk(ranks)[rank].copy_(part)
    start = emulation.now()
    all_gather_both_ways(flat)
    return flat, emulation.now() - start


def _parts(ranks: int, elements: int = 4) -> list[torch.Tensor]:
    return [torch.randn(elements) for _ in range(ranks)]


@GATHER.check("every rank has every part, in its place", points=3)
def check_gathered(answer: Answer) -> None:
    """At 2 ranks both neighbours are one."""
    for ranks in (3, 4, 5, 2):
        parts = _parts(ranks)
        run = answer.run(_gather, ranks, Each(parts))
        for rank in range(ranks):
            got = run[rank][0].chunk(ranks)
            for place, part in enumerate(parts):
                where = f"with {plural(ranks, 'rank')}, part {place} on rank {rank}"
                require(
                    not got[place].isnan().any(),
                    f"{where} was never written. From which side should it come, and in which step?",
                )
                require(
                    torch.equal(got[place], part),
                    f"{where} is not what rank {place} had. In step s, whose part comes from the left, and whose "
                    "from the right?",
                )


@GATHER.check("p - 1 parts from each rank, to its neighbours", points=2, needs=("check_gathered",))
def check_messages(answer: Answer) -> None:
    """Counted message by message, on a backend that sees every one."""
    ranks, elements = 5, 1000
    run = answer.run(_gather, ranks, Each(_parts(ranks, elements)), backend="ring", record=True)
    used = sorted(set(run.traffic.operations) - {"send", "recv"})
    require(
        not used,
        f"it calls {', '.join(used)}: build it from send and receive (and their non-blocking forms) alone.",
    )
    budget = (ranks - 1) * elements * 4
    for rank in range(ranks):
        came = run.traffic.bytes_received(rank=rank)
        require(
            came >= budget,
            f"rank {rank} receives {came:,} bytes; it has {ranks - 1} parts of others to get, {budget:,} bytes. Where "
            "does the rest come from?",
        )
    matrix = run.traffic.matrix()
    for rank in range(ranks):
        near = {(rank + 1) % ranks, (rank - 1) % ranks}
        far = [peer for peer in range(ranks) if matrix[rank][peer] and peer not in near]
        require(
            not far,
            f"rank {rank} sends to {', '.join(f'rank {peer}' for peer in far)}; its cables go to its two "
            "neighbours. Who can pass a part on?",
        )
        sent = sum(matrix[rank])
        require(
            sent <= budget,
            f"rank {rank} sends {sent:,} bytes; {ranks - 1} parts are {budget:,}. Which part travels that its "
            "receiver has already?",
        )


@GATHER.check("both ways at once", points=3, needs=("check_gathered",))
def check_time(answer: Answer) -> None:
    """On the virtual clock, where a message takes one second."""
    for ranks in (2, 3, 5, 6):
        run = answer.run(
            _gather, ranks, Each(_parts(ranks)), network=SECOND, clock="virtual", backend="ring"
        )
        slowest, best = max(seconds for _, seconds in run), ranks // 2
        require(
            slowest <= best + 1e-6,
            f"with {plural(ranks, 'rank')}, it takes {plural(round(slowest), 'message')} one after the other; "
            f"{best} are enough. "
            "What travels to the left while a part travels to the right?",
        )
        require(
            min(seconds for _, seconds in run) >= 1,
            "a rank has all parts before a message could have come: whoever returns waits for those that it receives.",
        )
