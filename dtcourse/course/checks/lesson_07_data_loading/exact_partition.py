"""Each sample to one rank."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import torch

from dtcourse.course.checks.lesson_07_data_loading.samples import counted, seeds
from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.plural import plural

PARTITION = Exercise(
    "exact_partition",
    lesson="07",
    title="Each sample to one rank",
    takes=("part_of",),
    target="0 samples lost and 0 read twice for 1 to 64 ranks; numbers of samples that differ by at most 1",
    forbidden=(
        "torch.utils.data",
        "dtcourse.data",
    ),
)


def _parts(part_of: Any, cases: list[tuple[int, int, int]], seeds: list[int]) -> list[list[Any]]:
    """Each rank's part, each rank with a random state of its own."""
    found = []
    for total, size, epoch in cases:
        parts = []
        for rank in range(size):
            torch.manual_seed(seeds[rank % len(seeds)])
            random.seed(seeds[rank % len(seeds)])
            parts.append([int(i) for i in part_of(total, size, rank, epoch)])
        found.append(parts)
    return found


@PARTITION.check(
    "each sample once, on ranks that draw nothing alike", points=3, needs=("check_epochs",)
)
def check_partition(answer: Answer) -> None:
    """Also where the ranks do not divide the samples, and where there are fewer samples than ranks."""
    cases = [(random.randrange(300, 400), size, random.randrange(5)) for size in (1, 2, 3, 7, 64)]
    cases += [(3, 5, 0), (1, 2, 1)]
    for (total, size, epoch), parts in zip(cases, answer.call(_parts, cases, seeds()), strict=True):
        counted(
            [i for part in parts for i in part],
            total,
            f"{total} samples on {plural(size, 'rank')} in epoch {epoch}",
            "Do all ranks draw the same order, also where their own random states differ? Is anything padded?",
            "Who reads the rest that the ranks do not divide? Do all ranks draw the same order?",
        )
        lengths = [len(part) for part in parts]
        require(
            max(lengths) - min(lengths) <= 1,
            f"{total} samples on {plural(size, 'rank')}: one rank has {max(lengths)} and another {min(lengths)}. "
            "How would you deal out cards?",
        )


@PARTITION.check("another order in another epoch, the same one when asked again", points=2)
def check_epochs(answer: Answer) -> None:
    """At least nine of ten samples change places."""
    cases = [(400, 4, 0), (400, 4, 1), (400, 4, 7), (400, 4, 0)]
    first, second, eighth, again = answer.call(_parts, cases, seeds())
    require(
        first == again,
        "Epoch 0, asked for twice, comes in two orders. What may the order depend on, so that it can be made again?",
    )
    for name, other in (("1", second), ("7", eighth)):
        same = sum(
            a == b for x, y in zip(first, other, strict=True) for a, b in zip(x, y, strict=False)
        )
        require(
            same < 40,
            f"In epoch {name}, {same} of 400 samples stand where they stood in epoch 0. Where does the epoch come in?",
        )
    in_order = sum(a < b for part in first for a, b in pairwise(part))
    require(in_order < 300, "The samples come in their own order. Where are they shuffled?")


@PARTITION.check(
    "after k samples a rank, the same have been read on any number of ranks",
    points=2,
    needs=("check_epochs",),
)
def check_prefix(answer: Answer) -> None:
    """What resuming on another number of ranks stands on."""
    sizes = (1, 2, 3, 4, 6)
    runs = answer.call(_parts, [(240, size, 2) for size in sizes], seeds())
    alone = runs[0][0]
    for size, parts in zip(sizes, runs, strict=True):
        k = 60 // size
        read = {i for part in parts for i in part[:k]}
        require(
            read == set(alone[:60]),
            f"When each of {plural(size, 'rank')} has read {k} samples, {len(read - set(alone[:60]))} of those 60 are not among the "
            "first 60 that one rank alone would read. Does a rank take a block of the order, or every p-th place of it? "
            "And is it the same order for every p?",
        )
