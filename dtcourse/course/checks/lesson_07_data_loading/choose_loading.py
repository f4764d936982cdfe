"""How many workers, how large a shard, and what to keep in memory."""

from __future__ import annotations

import math

from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best

CHOOSE = Exercise(
    "choose_loading",
    lesson="07",
    title="Choose workers, shards and what to keep",
    takes=("choose_loading",),
    target="at most 1.01 times the best choice's time, on 9 clusters",
)

# samples, ranks, most workers per rank, epochs, room in files, a decoded sample's size in files,
# seconds: latency of an open, reading a file, decoding it, a rank's computing on it
Cluster = tuple[int, int, int, int, int, int, float, float, float, float]
OPENS: tuple[Cluster, ...] = (
    (20_000, 4, 4, 2, 3_000, 6, 50e-3, 5e-6, 0.2e-3, 0.1e-3),
    (50_000, 8, 2, 3, 8_000, 8, 20e-3, 2e-6, 0.1e-3, 0.2e-3),
    (10_000, 3, 5, 2, 1_500, 5, 200e-3, 10e-6, 0.1e-3, 0.1e-3),
)
DECODING: tuple[Cluster, ...] = (
    (20_000, 2, 8, 10, 60_000, 4, 3e-3, 5e-6, 8e-3, 0.3e-3),
    (8_000, 4, 3, 20, 12_000, 5, 5e-3, 10e-6, 5e-3, 0.2e-3),
    (12_000, 2, 6, 30, 40_000, 3, 2e-3, 5e-6, 6e-3, 0.5e-3),
)
READING: tuple[Cluster, ...] = (
    (20_000, 4, 8, 10, 12_000, 8, 3e-3, 0.5e-3, 0.5e-3, 0.4e-3),
    (16_000, 8, 4, 20, 9_000, 6, 10e-3, 0.3e-3, 0.3e-3, 0.5e-3),
    (30_000, 2, 6, 8, 31_000, 10, 5e-3, 1e-3, 1e-3, 0.6e-3),
)
Choice = tuple[int, int, str]
KEPT = ("files", "decoded")


def seconds(cluster: Cluster, choice: Choice) -> float:
    """Of all epochs, as the exercise counts them; infinite where the readers' shards do not fit."""
    samples, ranks, _, epochs, room, larger, latency, read, decode, compute = cluster
    workers, size, kept = choice
    readers, shards = ranks * workers, math.ceil(samples / size)
    left = room - readers * size
    if left < 0:
        return math.inf
    share = min(shards, left // (size * (larger if kept == "decoded" else 1))) / shards

    def epoch(fetched: float, decoded: float) -> float:
        shard = fetched * (latency + size * read) + decoded * size * decode
        return max(
            math.ceil(shards / readers) * shard,
            fetched * samples * read,
            samples / ranks * compute,
        )

    later = epoch(1 - share, 1 - share if kept == "decoded" else 1)
    return epoch(1, 1) + (epochs - 1) * later


def choices(cluster: Cluster) -> list[Choice]:
    """All that is allowed."""
    return [
        (workers, 2**power, kept)
        for workers in range(1, cluster[2] + 1)
        for power in range(13)
        for kept in KEPT
    ]


def best(cluster: Cluster) -> tuple[float, Choice]:
    """The shortest time, and its choice."""
    return min((seconds(cluster, choice), choice) for choice in choices(cluster))


def _require(answer: Answer, clusters: tuple[Cluster, ...], hint: str) -> None:
    for cluster, got in zip(clusters, call_each(answer, clusters), strict=True):
        samples, ranks, most, epochs, room, larger, latency, read, decode, compute = cluster
        where = (
            f"{samples:,} samples, {epochs} epochs, {ranks} ranks of at most {most} workers, room for {room:,} "
            f"files (a decoded one is {larger} times as large); seconds: {latency:g} per open, {read:g} to read, "
            f"{decode:g} to decode, {compute:g} to compute"
        )
        require(
            isinstance(got, (list, tuple)) and [type(n) for n in got] == [int, int, str],
            f"{where}: a choice is (workers, samples per shard, what to keep), such as (2, 64, 'files'); got {got!r}.",
        )
        require(
            tuple(got) in choices(cluster),
            f"{where}: {tuple(got)!r} is not possible. Workers are 1 to {most}, a shard has 1, 2, 4, ... or 4,096 "
            "samples, and 'files' or 'decoded' are kept.",
        )
        taken, (least, _) = seconds(cluster, tuple(got)), best(cluster)
        require(
            taken < math.inf,
            f"{where}: {tuple(got)!r} does not fit. How many readers hold a shard at once?",
        )
        require_near_best(where, got, taken, least, "s", hint)


@CHOOSE.check("where opening costs", points=3)
def check_opens(answer: Answer) -> None:
    """Large shards, and as many for each reader."""
    _require(
        answer,
        OPENS,
        "How many opens does the busiest reader make, and how many shards has it more than the others?",
    )


@CHOOSE.check("where decoding costs", points=3)
def check_decoding(answer: Answer) -> None:
    """Decoded samples take room, and save the most."""
    _require(
        answer,
        DECODING,
        "What does an epoch after the first one still have to do, with files kept and with decoded samples? And how "
        "much of it has the busiest reader?",
    )


@CHOOSE.check("where reading costs", points=3)
def check_reading(answer: Answer) -> None:
    """One link for all readers: what is kept need not pass it."""
    _require(
        answer,
        READING,
        "All readers share one link. What keeps samples off it, and what takes the room for that?",
    )
