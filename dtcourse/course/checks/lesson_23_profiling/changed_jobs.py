"""Jobs of data parallelism that several things slow down, run on the emulated clock as they are, and with two changes.

Layers take seconds of the clock, and their gradients really travel over a ring, beside backward: what is hidden before
a change and limits after it is found by running, and by no formula.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from dtcourse.course.checks.lesson_23_profiling import drawn_jobs
from dtcourse.course.checks.lesson_23_profiling.drawn_jobs import STEPS, Job, Row
from dtcourse.course.judging import own_ranks, trials
from dtcourse.emulation import EmulatedNetwork

RANKS = 4
CHANGES = ("card", "workers", "keep", "buckets", "network")
Choice = tuple[str, ...]
CHOICES: list[Choice] = list(itertools.combinations(CHANGES, 2))
# Of an all-reduce over a ring of four: messages one behind another, and how often each byte is sent.
MESSAGES, TIMES = 6, 1.5
FIXED, PER_BYTE = 3e-3, 2e-8  # seconds of every job's all-reduces


def changed(job: Job, choice: Choice) -> Job:
    """The job with these changes; see the exercise's text."""
    merged = [
        sum(pair, ())
        for pair in itertools.zip_longest(job.buckets[::2], job.buckets[1::2], fillvalue=())
    ]
    parts: dict[str, dict[str, Any]] = {
        "card": {"speed": tuple(max(job.speed) for _ in job.speed)},
        "workers": {"load": job.load / 2},
        "keep": {"repeats": 0},
        "buckets": {"buckets": tuple(merged)},
        "network": {"per_byte": job.per_byte / 2},
    }
    fields: dict[str, Any] = {}
    for name in choice:
        fields |= parts[name]
    return replace(job, **fields)


def drawn(
    *,
    hidden: bool,
    best: Callable[[Choice], bool],
    unrepeated: Callable[[Choice], bool] = lambda pair: True,
) -> Job:
    """A job.

    hidden: its best two changes are not the two that are best alone; else they are
    best: what they are
    unrepeated: what they seem to be, clearly, to somebody who overlooks that forwards are repeated
    """
    while True:
        job = _tried()
        both = sorted((drawn_jobs.seconds(changed(job, pair)), pair) for pair in CHOICES)
        greedy = most_alone(job)
        behind = drawn_jobs.seconds(changed(job, greedy)) / both[0][0]
        clear = both[1][0] > 1.06 * both[0][0] and (
            behind > 1.06 if hidden else greedy == both[0][1]
        )
        if (
            clear
            and best(both[0][1])
            and all(map(unrepeated, _nearly_best(replace(job, repeats=0))))
        ):
            return job


def _nearly_best(job: Job) -> list[Choice]:
    """The best two changes, and those that a trace's small differences could make better."""
    seconds = {pair: drawn_jobs.seconds(changed(job, pair)) for pair in CHOICES}
    return [pair for pair in CHOICES if seconds[pair] < 1.05 * min(seconds.values())]


def predicted_best(job: Job) -> Choice:
    """The two changes with which the steps are shortest, as `drawn_jobs` computes a trace."""
    return min(CHOICES, key=lambda pair: drawn_jobs.seconds(changed(job, pair)))


def most_alone(job: Job) -> Choice:
    """The two changes that save most where nothing else is changed."""
    alone = {name: drawn_jobs.seconds(changed(job, (name,))) for name in CHANGES}
    two = sorted(CHANGES, key=lambda name: alone[name])[:2]
    return tuple(name for name in CHANGES if name in two)


def _tried() -> Job:
    draw = random.uniform
    sizes = [random.randint(1, 3) for _ in range(random.randint(5, 7))]
    sizes[0] = 1 + sizes[1] % 3  # or a line has one size of message alone
    layers = iter(range(sum(sizes) - 1, -1, -1))
    buckets = tuple(tuple(next(layers) for _ in range(size)) for size in sizes)
    count = sum(sizes)
    computed = FIXED * len(sizes) / draw(0.1, 0.6)
    nbytes = 12 * int(computed / count * draw(0.1, 0.8) / PER_BYTE / 12)
    speed = [1.0] * RANKS
    speed[random.randrange(RANKS)] /= draw(1.1, 1.6)
    return Job(
        layer=computed / count / 3,
        speed=tuple(speed),
        work=(1.0,) * RANKS,
        load=computed * draw(0.9, 2.0),
        repeats=random.randint(0, count),
        buckets=buckets,
        fixed=FIXED,
        per_byte=PER_BYTE,
        nbytes=nbytes,
    )


def traces(jobs: list[Job]) -> list[list[list[Row]]]:
    """Of each job as it is, each rank's rows, by their begin, from the first step's start: run in one launch."""
    found = _launched(jobs, record=True)
    made = []
    for at in range(len(jobs)):
        rows = []
        for rank in range(RANKS):
            start, seconds, mine = found[rank][at]
            lane = found.timeline.of(rank=rank, lane="collectives", name="all_reduce")
            ends = iter([e.end for e in lane if start <= e.start < start + seconds])
            whole = [(w, n, a, next(ends) if w == "all_reduce" else b) for w, n, a, b in mine]
            rows.append([(w, n, a - start, b - start) for w, n, a, b in whole])
        made.append(rows)
    return made


def measured(jobs: list[Job]) -> list[float]:
    """Seconds of each job's steps, all run in one launch of the judge's own ranks."""
    found = _launched(jobs)
    return [max(of_rank[at][1] for of_rank in found) for at in range(len(jobs))]


def _launched(jobs: list[Job], record: bool = False) -> Any:
    network = EmulatedNetwork(FIXED / MESSAGES, TIMES / PER_BYTE)
    return own_ranks.launched(
        _steps, RANKS, jobs, record=record, backend="ring", network=network, clock="virtual"
    )


def _steps(jobs: list[Job]) -> list[tuple[float, float, list[Row]]]:
    """On each rank, of each job: the moment at which it starts, its seconds, and what the rank did."""
    import torch.distributed as dist

    return [_run(job, dist.get_rank()) for job in jobs]


def _run(job: Job, rank: int) -> tuple[float, float, list[Row]]:
    import torch.distributed as dist

    from dtcourse import emulation

    rows: list[Row] = []

    def spend(what: str, number: int, seconds: float) -> None:
        begin = emulation.now()
        emulation.sleep(seconds)
        rows.append((what, number, begin, emulation.now()))

    start = trials.begin_together()
    each = job.layer / job.speed[rank]
    for step in range(STEPS):
        spend("load", step, max(0.0, start + step * job.load - emulation.now()))
        for layer in range(job.layers):
            spend("forward", layer, each)
        waiting = []
        for bucket in job.buckets:
            for layer in bucket:
                if layer < job.repeats:
                    spend("forward", layer, each)
                spend("backward", layer, 2 * each)
            nbytes = job.nbytes * len(bucket)
            # All jobs share one network: twice its bandwidth is half of the bytes.
            flat = torch.zeros(round(nbytes * job.per_byte / PER_BYTE / 4))
            rows.append(("all_reduce", nbytes, emulation.now(), 0.0))
            waiting.append(dist.all_reduce(flat, async_op=True))
        for work in waiting:
            work.wait()
    return start, emulation.now() - start, rows
