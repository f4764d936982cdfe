"""Recursive doubling on any number of ranks."""

from __future__ import annotations

from typing import Any

import torch

from dtcourse.course.judging import Answer, Each, Exercise, require
from dtcourse.course.judging.forbidden import ALGORITHMS
from dtcourse.emulation import EmulatedNetwork
from dtcourse.plural import plural

DOUBLING = Exercise(
    "recursive_doubling",
    lesson="04",
    title="Recursive doubling on any number of ranks",
    takes=("doubling_all_reduce",),
    target="right at 2, 3, 4, 5, 6 and 8 ranks; at most log2 q (+ 1) messages per rank; the same bits on all ranks",
    forbidden=(*ALGORITHMS,),
)


def _doubling(doubling_all_reduce: Any, mine: torch.Tensor) -> torch.Tensor:
    doubling_all_reduce(mine)
    return mine


def _seconds_until_summed(doubling_all_reduce: Any, mine: torch.Tensor) -> float:
    """On a network whose messages take one second each, and nothing else any time: rounds on the critical path."""
    from dtcourse import emulation

    _doubling(doubling_all_reduce, mine)
    return emulation.now()


def _doubled(answer: Answer, sizes: tuple[int, ...], elements: int) -> None:
    for ranks in sizes:
        vectors = [torch.randn(elements) for _ in range(ranks)]
        right = torch.stack(vectors).double().sum(0)
        run = answer.run(_doubling, ranks, Each(vectors), timeout=8.0)
        for rank in range(ranks):
            off = (run[rank].double() - right).abs().max().item()
            require(
                off < 1e-4,
                f"With {plural(ranks, 'rank')}, rank {rank} does not have the sum (off by {off:.2g}). After round "
                "k, whose vectors should be in a rank's sum, and is any of them in it twice?",
            )
        for rank in range(1, ranks):
            require(
                torch.equal(run[rank], run[0]),
                f"With {plural(ranks, 'rank')}, ranks 0 and {rank} have the same sum, but not the same bits. They "
                "added the same numbers: in which order did each of them? After some steps of training their models "
                "would have drifted apart.",
            )


@DOUBLING.check("the sum, with the same bits, on a power of two", points=2)
def check_doubling_powers(answer: Answer) -> None:
    """At 2, 4 and 8 ranks."""
    _doubled(answer, (2, 4, 8), 1000)


@DOUBLING.check("the sum, with the same bits, on 3, 5 and 6 ranks", points=2)
def check_doubling_others(answer: Answer) -> None:
    """Ranks beyond the power of two."""
    _doubled(answer, (3, 5, 6), 1000)


@DOUBLING.check(
    "log2 q messages per rank, by send and receive alone",
    points=3,
    needs=("check_doubling_powers",),
)
def check_doubling_messages(answer: Answer) -> None:
    """Counted, and timed; one more each way where the rank has a partner outside the power of two."""
    for ranks in (4, 8, 6):
        vectors = [torch.randn(50) for _ in range(ranks)]
        run = answer.run(_doubling, ranks, Each(vectors), backend="ring", record=True)
        used = sorted({row.operation for row in run.traffic.rows} - {"send", "recv"})
        require(
            not used,
            f"It calls {', '.join(used)}. Build it from send and receive (and their non-blocking forms) alone.",
        )
        rounds = ranks.bit_length() - 1
        most = rounds + (ranks != 1 << rounds)
        for rank in range(ranks):
            sent = run.traffic.messages_sent(rank=rank)
            require(
                sent <= most,
                f"With {plural(ranks, 'rank')}, rank {rank} sends {sent} messages; {most} are enough. In each round "
                "the number of ranks whose vectors are in your sum doubles: how many rounds is that?",
            )
            came, least = run.traffic.bytes_received(rank=rank), 4 * len(vectors[rank])
            require(
                came >= least,
                f"With {plural(ranks, 'rank')}, rank {rank} receives {came} bytes; the others' sum alone has {least}. "
                "Where does it come from?",
            )
        # The clock is virtual: the same on every machine, and nobody sleeps.
        network = EmulatedNetwork(latency=1.0)
        run = answer.run(
            _seconds_until_summed, ranks, Each(vectors), network=network, clock="virtual"
        )
        passed, most = round(max(run)), rounds + 2 * (ranks != 1 << rounds)
        require(
            passed <= most,
            f"With {plural(ranks, 'rank')}, the last rank has the sum after {passed} messages, one after the other; "
            f"{most} are enough. In "
            "each round every rank sends and receives at the same time: does yours first wait for what others add, "
            "and then for what comes back?",
        )
