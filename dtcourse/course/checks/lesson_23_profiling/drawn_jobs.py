"""Jobs of data parallelism with one thing that limits them, drawn anew, and the trace of each.

A trace is computed, event by event, as a step of DDP runs: a loader works ahead, buckets are sent in order beside
backward, each all-reduce begins when its last rank has called it, and a step ends for all ranks together. Undoing a
cause is another job, so what each cause costs is known by computing both.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

STEPS = 3
KINDS = ("slow", "work", "data", "recompute", "latency", "bytes")
# (what, number, begin, end): a step's number for "load", a layer for "forward" and "backward", bytes for "all_reduce"
Row = tuple[str, int, float, float]
Trace = tuple[list[list[Row]], list[float]]


@dataclass(frozen=True)
class Job:
    """One job; seconds.

    layer:   of a layer's forward on a rank of usual speed with usual work; backward takes twice that
    speed:   of each rank, 1 is usual; work: of each rank's batch, 1 is usual
    load:    that the loader needs for each batch
    repeats: layers whose forward runs again in backward
    buckets: layers of each, in the order of sending
    fixed, per_byte: of an all-reduce, from its last rank's call on
    nbytes:  of a layer's gradient
    """

    layer: float
    speed: tuple[float, ...]
    work: tuple[float, ...]
    load: float
    repeats: int
    buckets: tuple[tuple[int, ...], ...]
    fixed: float
    per_byte: float
    nbytes: int

    @property
    def layers(self) -> int:
        """How many."""
        return sum(map(len, self.buckets))

    def without(self, kind: str) -> Job:
        """The same job with one cause undone."""
        ranks = len(self.speed)
        return {
            "slow": replace(self, speed=(1.0,) * ranks),
            "work": replace(self, work=(sum(self.work) / ranks,) * ranks),
            "data": replace(self, load=0.0),
            "recompute": replace(self, repeats=0),
            "latency": replace(self, fixed=0.0),
            "bytes": replace(self, per_byte=0.0),
        }[kind]


def run(job: Job) -> Trace:
    """Each rank's rows, by their begin, and the FLOPs that each rank has counted in all steps."""
    ranks = range(len(job.speed))
    rows: list[list[Row]] = [[] for _ in ranks]
    flops, now = [0.0 for _ in ranks], 0.0
    for step in range(STEPS):
        ends = [_computed(job, rank, step, now, rows[rank], flops) for rank in ranks]
        free = 0.0
        for bucket in job.buckets:
            calls = [max(ends[rank][layer] for layer in bucket) for rank in ranks]
            size = job.nbytes * len(bucket)
            free = max(free, *calls) + job.fixed + size * job.per_byte
            for rank in ranks:
                rows[rank].append(("all_reduce", size, calls[rank], free))
        now = max(free, *(max(one.values()) for one in ends))
    return [sorted(of_rank, key=lambda row: row[2]) for of_rank in rows], flops


def _computed(
    job: Job, rank: int, step: int, now: float, rows: list[Row], flops: list[float]
) -> dict[int, float]:
    """Loads a batch and computes it; when each layer's gradient was there."""
    # The loader began a batch's time before the first step, and works ahead.
    at = max(now, step * job.load)
    rows.append(("load", step, now, at))
    each = job.layer * job.work[rank]
    found = {}
    backward = [(layer, layer < job.repeats) for layer in reversed(range(job.layers))]
    todo = [("forward", layer, 1) for layer in range(job.layers)]
    for layer, again in backward:
        todo += [("forward", layer, 1)] * again + [("backward", layer, 2)]
    for what, layer, times in todo:
        end = at + times * each / job.speed[rank]
        rows.append((what, layer, at, end))
        flops[rank] += times * each * 1e12
        at = found[layer] = end
    return found


def seconds(job: Job) -> float:
    """Of all steps."""
    rows, _ = run(job)
    return max(end for of_rank in rows for *_, end in of_rank)


def gains(job: Job) -> dict[str, float]:
    """The part of the time that is saved by undoing each cause."""
    whole = seconds(job)
    return {kind: 1 - seconds(job.without(kind)) / whole for kind in KINDS}


def drawn(kind: str) -> tuple[Job, int | None]:
    """A job that `kind` limits, or "healthy", and its rank.

    Undoing it saves a sixth of the time or more, undoing anything else a 20th or less.
    """
    while True:
        job, rank = _tried(kind)
        saved = gains(job)
        own = saved.pop(kind, 1.0)
        if own >= 1 / 6 and max(saved.values()) <= 1 / 20:
            return job, rank if kind in ("slow", "work") else None


def _tried(kind: str) -> tuple[Job, int]:
    ranks, draw = random.choice((3, 4)), random.uniform
    rank, layer = random.randrange(ranks), draw(1e-3, 4e-3)
    sizes = [random.randint(1, 3) for _ in range(random.randint(3, 5))]
    sizes[0] = 1 + sizes[1] % 3  # or a line has one size of message alone
    layers = iter(range(sum(sizes) - 1, -1, -1))
    buckets = tuple(tuple(next(layers) for _ in range(size)) for size in sizes)
    count, odd = sum(sizes), draw(1.35, 2.0)
    speed = [draw(0.995, 1.0) for _ in range(ranks)]
    work = [draw(0.99, 1.01) for _ in range(ranks)]
    if kind == "slow":
        speed[rank] /= odd
    if kind == "work":
        work[rank] *= odd
    computed = 3 * layer * count
    nbytes = random.randint(1, 8) << 20
    small = 0.02 * computed / len(sizes)
    fixed = small * draw(0.2, 0.8) if kind != "latency" else computed / len(sizes) * draw(0.5, 1.2)
    per_layer = small * draw(0.2, 0.8) if kind != "bytes" else computed / count * draw(0.7, 1.5)
    load = computed * (draw(1.3, 2.0) if kind == "data" else draw(0.3, 0.7))
    repeats = (
        random.randint(count * 3 // 4, count) if kind == "recompute" else random.choice((0, 0, 1))
    )
    return (
        Job(
            layer,
            tuple(speed),
            tuple(work),
            load,
            repeats,
            buckets,
            fixed,
            per_layer / nbytes,
            nbytes,
        ),
        rank,
    )
