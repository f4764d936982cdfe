"""How many workers, how large a shard, and what to keep in memory: run on the emulated clock."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best
from dtcourse.emulation import EmulatedNetwork

CHOOSE = Exercise(
    "choose_loading",
    lesson="07b",
    title="Choose workers, shards and what to keep",
    takes=("choose_loading",),
    target="on 6 clusters, run on the emulated clock, at most 1.01 times the time of the best of all choices",
    forbidden=("dtcourse.data", "dtcourse.emulation", "dtcourse.simulator"),
)

# samples, most workers, epochs, room in files, a decoded sample's size in files,
# seconds: latency of an open, a file on the link, decoding it, the rank's computing on it
Cluster = tuple[int, int, int, int, int, float, float, float, float]
OPENS: tuple[Cluster, ...] = (
    (400, 6, 2, 900, 6, 50e-3, 5e-6, 0.2e-3, 0.1e-3),
    (400, 4, 3, 700, 4, 40e-3, 2e-6, 0.5e-3, 0.3e-3),
)
DECODING: tuple[Cluster, ...] = (
    (500, 4, 4, 1_500, 4, 3e-3, 5e-6, 8e-3, 0.3e-3),
    (400, 3, 5, 700, 5, 5e-3, 10e-6, 5e-3, 0.2e-3),
)
READING: tuple[Cluster, ...] = (
    (400, 8, 4, 400, 8, 3e-3, 0.5e-3, 0.5e-3, 0.1e-3),
    (300, 8, 4, 420, 10, 5e-3, 1e-3, 1e-3, 0.2e-3),
)
Choice = tuple[int, int, str]
KEPT = ("files", "decoded")
MOST_POWER = 7
OPTIONS: dict[str, Any] = {"clock": "virtual", "network": EmulatedNetwork(), "timeout": 120.0}
FILE = 100  # bytes of a sample's file, as emulated: the link's bandwidth says how long it takes


def left(cluster: Cluster, choice: Choice) -> int:
    """Room, in files, beside the decoded shards that the loader holds."""
    _, _, _, room, larger, *_ = cluster
    workers, size, _ = choice
    return room - (2 * workers + 2) * size * larger


def choices(cluster: Cluster) -> list[Choice]:
    """All that is allowed."""
    every = [
        (workers, 2**power, kept)
        for workers in range(1, cluster[1] + 1)
        for power in range(MOST_POWER + 1)
        for kept in KEPT
    ]
    return [one for one in every if left(cluster, one) >= 0]


def seconds(cluster: Cluster, choice: Choice) -> float:
    """Of all epochs, without the emulator: each worker's time, the link's and the rank's, shard by shard."""
    samples, _, epochs, _, _, latency, read, decode, compute = cluster
    workers, size, kept = choice
    shards, keeps = _shards(cluster, choice)
    now = link = 0.0
    for epoch in range(epochs):
        free = [now] * workers
        # When there was room for each of the next shards.
        room = [now] * (2 * workers + 2)
        for number in range(shards):
            held = min(size, samples - number * size)
            worker = free.index(min(free))
            at = max(free[worker], room[number])
            read_again = epoch == 0 or not _stays(number, keeps, shards)
            if read_again:
                at = link = max(link, at + latency) + held * read
            if read_again or kept == "files":
                at += held * decode
            free[worker] = at
            now = max(now, at) + held * compute
            room.append(now)
    return now


def best(cluster: Cluster) -> Choice:
    """The choice that takes the shortest time."""
    return min(choices(cluster), key=lambda choice: seconds(cluster, choice))


def _shards(cluster: Cluster, choice: Choice) -> tuple[int, int]:
    """How many there are, and how many of them stay in memory."""
    samples, _, _, _, larger, *_ = cluster
    _, size, kept = choice
    shards = math.ceil(samples / size)
    place = size * (larger if kept == "decoded" else 1)
    return shards, min(shards, left(cluster, choice) // place)


def _stays(number: int, keeps: int, shards: int) -> bool:
    """Whether a shard stays in memory: those that do are spread evenly over the order."""
    return number * keeps // shards != (number + 1) * keeps // shards


def _emulated(_: Any, cluster: Cluster, tried: list[Choice]) -> list[float]:
    """Seconds of the virtual clock for all epochs, by choice; the loader is the course's Prefetcher."""
    from dtcourse import emulation

    found = []
    with tempfile.TemporaryDirectory() as folder:
        for choice in tried:
            start = emulation.now()
            _train(Path(folder), cluster, choice)
            found.append(emulation.now() - start)
    return found


def _train(folder: Path, cluster: Cluster, choice: Choice) -> None:
    from dtcourse import data, emulation

    samples, _, epochs, _, _, latency, read, decode, compute = cluster
    workers, size, kept = choice
    shards, keeps = _shards(cluster, choice)
    storage = data.EmulatedStorage(latency, FILE / read)
    for epoch in range(epochs):

        def make(number: int, again: bool = epoch > 0) -> int:
            stays = again and _stays(number, keeps, shards)
            held = min(size, samples - number * size)
            if not stays:
                path = folder / f"{held}.tar"
                if not path.exists():
                    path.write_bytes(bytes(FILE * held))
                with storage.open(path) as file:
                    file.read()
            if not stays or kept == "files":
                emulation.sleep(decode * held)
            return held

        for held in data.Prefetcher(range(shards), 2 * workers, make, workers):
            emulation.sleep(compute * held)


def _require(answer: Answer, clusters: tuple[Cluster, ...], hint: str) -> None:
    for cluster, got in zip(clusters, call_each(answer, clusters), strict=True):
        samples, most, epochs, room, larger, latency, read, decode, compute = cluster
        where = (
            f"{samples:,} samples, {epochs} epochs, at most {most} workers, room for {room:,} files (a decoded one is "
            f"{larger} times as large); seconds: {latency:g} per open, {read:g} on the link, {decode:g} to decode, "
            f"{compute:g} to compute"
        )
        require(
            isinstance(got, (list, tuple)) and [type(n) for n in got] == [int, int, str],
            f"{where}: a choice is (workers, samples per shard, what to keep), such as (2, 64, 'files'); got {got!r}.",
        )
        choice: Choice = (got[0], got[1], got[2])
        require(
            1 <= choice[0] <= most
            and choice[1] in [2**power for power in range(MOST_POWER + 1)]
            and choice[2] in KEPT,
            f"{where}: {choice!r} is not possible. Workers are 1 to {most}, a shard has 1, 2, 4, ... or "
            f"{2**MOST_POWER} samples, and 'files' or 'decoded' are kept.",
        )
        require(
            left(cluster, choice) >= 0,
            f"{where}: {choice!r} does not fit. How many decoded shards does the loader hold at once?",
        )
        tried = list(dict.fromkeys((choice, best(cluster))))
        times = answer.run(_emulated, 1, cluster, tried, **OPTIONS)[0]
        require_near_best(where, got, times[0], times[-1], "s", hint)


@CHOOSE.check("where opening costs", points=3)
def check_opens(answer: Answer) -> None:
    """Large shards, and as many for each worker."""
    _require(
        answer,
        OPENS,
        "How many opens does the busiest worker make, how many shards has it more than the others, and what waits for "
        "the first one?",
    )


@CHOOSE.check("where decoding costs", points=3)
def check_decoding(answer: Answer) -> None:
    """Decoded samples take room, and save the most."""
    _require(
        answer,
        DECODING,
        "What does an epoch after the first one still have to do, with files kept and with decoded samples?",
    )


@CHOOSE.check("where reading costs", points=3)
def check_reading(answer: Answer) -> None:
    """One link for all workers: what is kept need not pass it, and each worker takes some of the room for it."""
    _require(
        answer,
        READING,
        "All workers share one link. What keeps samples off it, what takes the room for that, and what does one "
        "worker more take?",
    )
