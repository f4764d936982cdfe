"""How large a shard, how many readers, how large a buffer? An epoch is emulated, and its mixing is counted."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

from dtcourse.course.judging import (
    Answer,
    Exercise,
    own_ranks,
    require,
    require_near_best,
    trials,
)
from dtcourse.emulation import EmulatedNetwork
from dtcourse.plural import plural

CHOOSE = Exercise(
    "choose_shards",
    lesson="07",
    title="Choose shards, readers and a buffer",
    takes=("choose_shards",),
    launches=True,
    target="in 6 cases an epoch in at most 1.01 times the time of the best choice that fits and mixes; at most 12 of "
    "72 choices tried",
    forbidden=("dtcourse.data", "dtcourse.emulation", "dtcourse.simulator"),
)

RANKS, SAMPLES, CLASSES, BATCH = 2, 176, 8, 16
EPOCHS = 20  # over which mixing is counted
FILE = 100  # bytes of a sample, as emulated: the link's bandwidth says how long they take
MOST = 12  # choices that an answer may try
CHOICES: list[trials.Choice] = [
    (size, readers, buffer)
    for size in (1, 2, 4, 8, 16, 32)
    for readers in (1, 2, 6)
    for buffer in (0, 16, 32, 64)
]
# Seconds: latency of an open, a sample on the link, computing on it.
Storage = tuple[float, float, float]
FAR: Storage = (40e-3, 0.2e-3, 1e-3)
NEAR: Storage = (8e-3, 0.1e-3, 0.5e-3)
# With each, the samples that memory holds, and the largest share of a batch that its most common class may have.
Limits = tuple[Storage, int, float]
OPENS: tuple[Limits, ...] = ((FAR, 200, 0.60), (FAR, 200, 0.46))
MIXED: tuple[Limits, ...] = ((NEAR, 200, 0.335), (FAR, 200, 0.38))
MEMORY: tuple[Limits, ...] = ((FAR, 50, 0.55), (NEAR, 30, 0.50))


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Of this process, until it ends: a file for each size of a shard."""
    return tempfile.TemporaryDirectory()


def _shards(size: int, rank: int, epoch: int) -> list[range]:
    """The samples of each shard of a rank, in the order of reading: shards shuffled, dealt by turns."""
    shards = [range(start, min(start + size, SAMPLES)) for start in range(0, SAMPLES, size)]
    random.Random(f"{epoch} shards").shuffle(shards)
    return shards[rank::RANKS]


@cache
def _shares(size: int, buffer: int, rank: int) -> float:
    """Of the most common class in a rank's batches, on average over some epochs. Samples are stored class by class."""
    from dtcourse.data.shards import shuffled

    found = []
    for epoch in range(EPOCHS):
        stored = (sample for shard in _shards(size, rank, epoch) for sample in shard)
        read = [*shuffled(stored, buffer, random.Random(f"{epoch} {rank} buffer"))]
        for start in range(0, len(read) - BATCH + 1, BATCH):
            classes = Counter(sample * CLASSES // SAMPLES for sample in read[start : start + BATCH])
            found.append(max(classes.values()) / BATCH)
    return sum(found) / len(found)


def epoch(
    choice: tuple[int, int, int], latency: float, link: float, compute: float
) -> tuple[float, float, float]:
    """On each rank: an epoch. Its seconds, the most samples held, the share of a batch's most common class."""
    import torch.distributed as dist

    from dtcourse import data, emulation
    from dtcourse.data.shards import shuffled

    size, readers, buffer = choice
    rank, folder = dist.get_rank(), Path(_folder().name)
    storage = data.EmulatedStorage(latency, FILE / link)
    held = most = 0

    def read(shard: range) -> range:
        nonlocal held, most
        path = folder / f"{len(shard)}.tar"
        if not path.exists():
            path.write_bytes(bytes(FILE * len(shard)))
        with storage.open(path) as file:
            file.read()
        held += len(shard)
        most = max(most, held)
        return shard

    start = emulation.now()
    ahead = data.Prefetcher(_shards(size, rank, 0), 2 * readers, read, readers)
    stored = (sample for shard in ahead for sample in shard)
    waiting = 0
    for _ in shuffled(stored, buffer, random.Random("0")):
        held, waiting = held - 1, waiting + 1
        if waiting == BATCH:
            emulation.sleep(BATCH * compute)
            waiting = 0
    emulation.sleep(waiting * compute)
    return emulation.now() - start, float(most), _shares(size, buffer, rank)


def case(storage: Storage, room: int, share: float) -> trials.Case:
    """A storage, as an answer gets it."""
    emulated = {"network": EmulatedNetwork()}
    told = (*storage, room, share)
    return trials.Case(epoch, RANKS, CHOICES, storage, told, MOST, emulated)


PRACTICE = case(*OPENS[0])


def _every(storage: Storage) -> list[tuple[float, float, float]]:
    return [epoch(choice, *storage) for choice in CHOICES]


@cache
def measured(storage: Storage) -> dict[trials.Choice, trials.Measured]:
    """Seconds, samples held and mixing of every choice: all are run. Ranks say nothing to each other until the end."""
    by_rank = own_ranks.launched(_every, RANKS, storage, clock="virtual", network=EmulatedNetwork())
    both = zip(*by_rank, strict=True)
    return dict(zip(CHOICES, (tuple(map(max, *one)) for one in both), strict=True))


def best(storage: Storage, room: int, share: float) -> tuple[float, trials.Choice]:
    """The shortest time of what fits and mixes, and its choice."""
    return min(
        (seconds, choice)
        for choice, (seconds, held, common) in measured(storage).items()
        if held <= room and common <= share
    )


def _require(answer: Answer, limits: tuple[Limits, ...], hint: str) -> None:
    for storage, room, share in limits:
        latency, link, compute = storage
        where = (
            f"room for {plural(room, 'sample')}, at most {share:g} of a batch of one class; {1e3 * latency:g} ms per "
            f"open, {1e3 * link:g} ms on the link and {1e3 * compute:g} ms of computing per sample"
        )
        tried = case(storage, room, share).tried(answer)
        seconds, held, common = trials.require_possible(
            where,
            tried,
            (8, 2, 16),
            "Shards of 1, 2, 4, 8, 16 or 32 samples, 1, 2 or 6 readers, a buffer of 0, 16, 32 or 64 samples.",
        )
        require(
            held <= room,
            f"{where}: with {tried.choice!r} a rank holds {held:.0f} samples at once. What does a reader hold that is "
            "ahead of the rank?",
        )
        require(
            common <= share,
            f"{where}: with {tried.choice!r} the most common class has {common:.3f} of a batch. How far does a sample "
            "get from those that are stored beside it?",
        )
        least, _ = best(storage, room, share)
        require_near_best(where, tried.choice, 1e3 * seconds, 1e3 * least, "ms", hint)


@CHOOSE.check("where an open costs most", points=3)
def check_opens(answer: Answer) -> None:
    """Few opens, many at once; but not so few that the ranks' parts are unlike."""
    _require(
        answer,
        OPENS,
        "How many opens does one reader make in turn, how much has the rank with most to read, and what does a rank "
        "wait for before its first batch?",
    )


@CHOOSE.check("where batches have to be mixed", points=3)
def check_mixed(answer: Answer) -> None:
    """Smaller shards or a larger buffer."""
    _require(
        answer,
        MIXED,
        "Smaller shards mix, and a larger buffer does. What does each cost here, and when?",
    )


@CHOOSE.check("where memory is small", points=3)
def check_memory(answer: Answer) -> None:
    """A reader more, or a larger shard."""
    _require(
        answer,
        MEMORY,
        "Of what does the room hold more: readers, larger shards or a buffer? Which of them saves most time for its "
        "place?",
    )
