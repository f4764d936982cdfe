"""A cache in the memories of all ranks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from dtcourse.course.judging import Answer, Each, Exercise, require
from dtcourse.plural import plural

SHARE = Exercise(
    "share_cache",
    lesson="07b",
    title="A cache in the memories of all ranks",
    takes=("SharedCache",),
    target="from epoch 2 on, reads of exactly the samples that the ranks' memories together cannot hold; one message "
    "of its bytes per hit",
    forbidden=("dtcourse.data", "torch.utils.data"),
)

SHAPE = (32, 32)  # float32: 4 KiB per sample
ASKING = 512  # bytes per rank and call, to say who wants what


def _epochs(shared_cache: Any, capacity: int, orders: list[list[int]], values: list[float]) -> Any:
    """This rank's reads in each epoch, and how often another sample came back than the one that was asked for."""
    cache = shared_cache(capacity, SHAPE)
    reads, wrong = [], 0
    for order in orders:
        read, made = _storage(values)
        for index in order:
            got = cache.get(index, read)
            wrong += got.shape != SHAPE or not bool((got == torch.full(SHAPE, values[index])).all())
        reads.append(len(made))
    return reads, wrong


def _storage(values: list[float]) -> tuple[Callable[[int], torch.Tensor], list[int]]:
    """What reads a sample, and the list of what it has read, which is no argument: an answer could give another."""
    made: list[int] = []

    def read(index: int) -> torch.Tensor:
        made.append(index)
        return torch.full(SHAPE, values[index])

    return read, made


def _run(answer: Answer, ranks: int, each: int, capacity: int, epochs: int = 3) -> Any:
    """Reads of all ranks by epoch, and all bytes sent. each: samples per rank and epoch."""
    total = ranks * each
    orders = [random.sample(range(total), total) for _ in range(epochs)]
    own = Each([[order[rank::ranks] for order in orders] for rank in range(ranks)])
    values = [random.random() for _ in range(total)]
    run = answer.run(_epochs, ranks, capacity, own, values, record=True)
    wrong = sum(wrong for _, wrong in run)
    require(
        not wrong,
        f"{wrong} of {total * epochs} times another sample came back than the one that was asked for. Whose message "
        "does a rank receive, and under which key does it keep it?",
    )
    sent = sum(run.traffic.bytes_sent(rank=rank) for rank in range(ranks))
    return [sum(reads[epoch] for reads, _ in run) for epoch in range(epochs)], sent


@SHARE.check("the right samples, and no more of them than fit", points=2, needs=("check_reads",))
def check_right(answer: Answer) -> None:
    """Also for one rank, for no room, and for room for all."""
    for ranks, each, capacity in ((1, 12, 5), (2, 9, 0), (2, 8, 8)):
        reads, _ = _run(answer, ranks, each, capacity)
        total = ranks * each
        least = total - ranks * capacity
        require(
            min(reads[1:]) >= least,
            f"{plural(ranks, 'rank')} with room for {capacity} of {total} samples each: {min(reads[1:])} reads in "
            f"one epoch, and {least} are "
            "the fewest that there can be. How many do you keep?",
        )


@SHARE.check("storage is asked only for what no rank keeps", points=4, needs=("check_right",))
def check_reads(answer: Answer) -> None:
    """In each epoch after the first, at 2 and 3 ranks."""
    for ranks, each, capacity in ((2, 20, 5), (3, 12, 8)):
        reads, _ = _run(answer, ranks, each, capacity)
        total = ranks * each
        most = total - ranks * capacity
        require(
            max(reads[1:]) <= most,
            f"{plural(ranks, 'rank')} with room for {capacity} of {total} samples each: {max(reads[1:])} reads in "
            f"an epoch after the first, where {most} are enough. Which other rank may have the sample in its "
            "memory, and is anything thrown out that comes again?",
        )


@SHARE.check(
    "a sample travels to the rank that wants it, and to no other", points=3, needs=("check_reads",)
)
def check_bytes(answer: Answer) -> None:
    """One message per hit; each sample may travel once more, to the rank that is to keep it."""
    ranks, each, capacity = 3, 12, 8
    reads, sent = _run(answer, ranks, each, capacity)
    nbytes, calls = 4 * SHAPE[0] * SHAPE[1], len(reads) * each
    hits = ranks * calls - sum(reads)
    allowed = (hits + ranks * capacity) * nbytes + calls * ranks * ASKING
    require(
        sent <= allowed,
        f"{plural(ranks, 'rank')} sent {sent:,} bytes for {hits} hits of {nbytes:,} bytes; {allowed:,} are allowed. "
        "Who gets a sample that one rank wants?",
    )
