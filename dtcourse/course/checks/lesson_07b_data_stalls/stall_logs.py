"""Logs of jobs that wait for their data, or not, drawn anew each time: what diagnose_stall is given."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

EACH = 3  # logs of a kind, and as many healthy ones beside them
EPOCHS, STEPS = 2, 30
LOST = 0.12  # of the job's time at least is lost beside a step's computing
Diagnosis = tuple[str, int | None]
Row = tuple[int, int | None, int, int, str, float, float]
Log = tuple[list[Row], int]


@dataclass
class Job:
    """What a log is drawn from. Times are multiples of a step's computing, for each rank where they are lists."""

    ranks: int
    workers: int
    ahead: int  # batches that a worker may have ready, or in the making
    read: list[float]
    decode: list[float]
    compute: list[float]
    start: float = 0.0  # from the beginning of an epoch until its workers work
    # Ranks where one worker has half of all batches: which one in epoch 0, the next one in epoch 1.
    favoured: dict[int, int] = field(default_factory=dict)
    # Reads that take another time: (epoch, rank, batch).
    long: dict[tuple[int, int, int], float] = field(default_factory=dict)


def _turns(job: Job, epoch: int, rank: int) -> list[int]:
    """Which worker makes each batch: in turns, as DataLoader takes them, and without those that have no more."""
    left = [len(range(w, STEPS, job.workers)) for w in range(job.workers)]
    if rank in job.favoured:
        rest = STEPS // 2
        left = [len(range(w, rest, job.workers - 1)) for w in range(job.workers - 1)]
        left.insert((job.favoured[rank] + epoch) % job.workers, STEPS - rest)
    turns: list[int] = []
    while any(left):
        for worker in range(job.workers):
            if left[worker]:
                left[worker] -= 1
                turns.append(worker)
    return turns


def run(job: Job) -> list[Row]:
    """What workers and ranks do, from when to when: (rank, worker or None, epoch, batch, what, start, end)."""
    rows: list[Row] = []
    now = 0.0
    for epoch in range(EPOCHS):
        turns = [_turns(job, epoch, rank) for rank in range(job.ranks)]
        free = [[now + job.start] * job.workers for _ in range(job.ranks)]
        # When the rank took each batch of a worker: the next one but `ahead` may begin then.
        taken: list[list[list[float]]] = [
            [[] for _ in range(job.workers)] for _ in range(job.ranks)
        ]
        for batch in range(STEPS):
            ends = []
            for rank in range(job.ranks):
                worker = turns[rank][batch]
                before = taken[rank][worker]
                idle = free[rank][worker]
                room = before[-job.ahead] if len(before) >= job.ahead else idle
                begun = max(idle, room)
                read = begun + job.long.get(
                    (epoch, rank, batch), job.read[rank] * random.uniform(0.9, 1.1)
                )
                made = read + job.decode[rank] * random.uniform(0.9, 1.1)
                free[rank][worker] = made
                got = max(now, made)
                before.append(got)
                end = got + job.compute[rank] * random.uniform(0.92, 1.08)
                ends.append(end)
                spans: list[tuple[int | None, str, float, float]] = [
                    (worker, "wait: room", idle, begun),
                    (worker, "read", begun, read),
                    (worker, "decode", read, made),
                    (None, "wait: batch", now, got),
                    (None, "compute", got, end),
                ]
                rows += [(rank, who, epoch, batch, *span) for who, *span in spans]  # type: ignore[misc]
            now = max(ends)
            rows += [(r, None, epoch, batch, "wait: ranks", end, now) for r, end in enumerate(ends)]
    return [row for row in rows if row[6] - row[5] > 1e-9]


def _drawn(kind: str, turn: int) -> tuple[Job, int | None]:
    """A job with a mistake of this kind, and the rank that has it: None for all ranks, or for no mistake."""
    ranks, workers, ahead = random.randint(3, 5), random.randint(3, 4), random.randint(2, 3)
    # Workers are quick enough: together they need about half of the time of a step.
    making = random.uniform(0.45, 0.6) * workers
    part, slow = random.uniform(0.35, 0.65), random.uniform(1.4, 2.0)
    if turn == 2 and kind in ("storage", "decode"):
        # What is slow on one rank is quick on the others: all workers together do more of the other thing.
        ranks, part, slow = 5, 0.2 if kind == "storage" else 0.8, random.uniform(1.1, 1.2)
    job = Job(
        ranks, workers, ahead, [making * part] * ranks, [making * (1 - part)] * ranks, [1.0] * ranks
    )
    odd: int | None = random.randrange(ranks)
    if kind in ("start", "healthy") or (turn == 1 and kind in ("storage", "decode", "prefetch")):
        odd = None
    hit = range(ranks) if odd is None else [odd]
    ready = ahead * workers
    # Here and there a read takes long, but not longer than the batches last that are ready.
    if kind in ("healthy", "compute", "start") and turn != 1:
        for epoch, rank in itertools.product(range(EPOCHS), range(ranks)):
            job.long[epoch, rank, random.randint(ready + 2, STEPS - 6)] = 0.6 * ready
    for rank in hit:
        if kind == "storage":
            job.read[rank] = slow * workers
        elif kind == "decode":
            job.decode[rank] = slow * workers
        elif kind == "compute":
            job.compute[rank] = 0.95 * slow
        elif kind == "prefetch":
            for epoch in range(EPOCHS):
                place = random.randint(ready + 1, STEPS - 6)
                job.long[epoch, rank, place] = ready + random.uniform(6, 9)
        elif kind == "shards":
            job.favoured[rank] = random.randrange(workers)
    if kind == "start":
        job.start = random.uniform(10, 18)
    if kind == "healthy" and turn == 1:
        # Shards are dealt badly, but one worker alone is quick enough.
        job.favoured[random.randrange(ranks)] = random.randrange(workers)
        job.read, job.decode = [0.35] * ranks, [0.35] * ranks
    return job, odd


def _spent(rows: list[Row], rank: int, what: str) -> float:
    """By a rank and its workers, but for the first batch of an epoch."""
    return sum(row[6] - row[5] for row in rows if row[0] == rank and row[4] == what and row[3])


def _last(rows: list[Row]) -> set[int]:
    """Ranks that have waited for a batch in a step in which the others wait for them."""
    wait = {row[:4] for row in rows if row[4] == "wait: ranks"}
    return {
        row[0]
        for row in rows
        if row[4] == "wait: batch" and row[3] and row[6] - row[5] > 0.3 and row[:4] not in wait
    }


def _is_plain(kind: str, job: Job, odd: int | None, rows: list[Row]) -> bool:
    """That the mistake costs LOST of the time, that a rank that has it shows it, and that no other does."""
    whole = max(row[6] for row in rows)
    waited = [_spent(rows, rank, "wait: batch") / whole for rank in range(job.ranks)]
    starving = kind not in ("healthy", "start", "compute")
    hit = set(range(job.ranks)) if odd is None else {odd}
    for rank, share in enumerate(waited):
        if share < 0.06 if starving and rank in hit else share > 0.01:
            return False
    if starving and odd is None and len(_last(rows)) < 2:
        return False
    if kind == "prefetch":
        for rank in hit:
            busy = _spent(rows, rank, "read") + _spent(rows, rank, "decode")
            if _spent(rows, rank, "wait: room") < 0.2 * busy:
                return False
    return kind == "healthy" or whole * (1 - LOST) > EPOCHS * STEPS


def recorded(kind: str, turn: int) -> tuple[Log, Diagnosis]:
    """A job of two epochs with one mistake, or none. turn: 0 to EACH - 1; in turn 1 all ranks may have the mistake."""
    while True:
        job, odd = _drawn(kind, turn)
        rows = run(job)
        if _is_plain(kind, job, odd, rows):
            break
    step = random.uniform(5e-3, 40e-3)
    rows = [(*row[:5], round(step * row[5], 6), round(step * row[6], 6)) for row in rows]
    random.shuffle(rows)
    return (rows, job.ranks), (kind, odd)
