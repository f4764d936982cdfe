"""What jobs logged on several ranks: where did the speed-up go, or which figure is wrong? The jobs are run."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from dtcourse.course.judging import Answer, Exercise, own_ranks, require_diagnoses
from dtcourse.emulation import EmulatedNetwork

DIAGNOSE = Exercise(
    "diagnose_speed_up",
    lesson="01b",
    title="Where did the speed-up go?",
    takes=("diagnose_speed_up",),
    launches=True,
    target="21 of 21 logs of jobs on 3, 4 and 6 emulated ranks",
)

Diagnosis = tuple[str, Any]
Log = dict[str, Any]
NETWORK = EmulatedNetwork(latency=50e-6, bandwidth=100e6)
STEPS = 3
NOISE = 0.03
BATCHES = {3: 240, 4: 480, 6: 960}  # images per step, by the number of ranks
SLOWER = {3: 1.5, 4: 2.0, 6: 1.7}  # how many times as long the slow rank computes
# ms of a step on one rank: waiting for data, computing (which is divided), updating; and what a gradient's bytes take
WORK = {
    "healthy": (0.5, 400.0, 1.0, 2.0),
    "network": (1.0, 60.0, 2.0, 30.0),
    "update": (1.0, 60.0, 30.0, 3.0),
    "data": (30.0, 90.0, 3.0, 5.0),
    "rank": (0.5, 200.0, 1.0, 3.0),
    "counted": (1.0, 150.0, 3.0, 10.0),
    "clock": (1.0, 90.0, 2.0, 20.0),
}


def _train(jobs: list[tuple[str, int | None, int]]) -> list[list[float]]:
    """For each job, this rank's seconds per step: data, compute, averaging, update, and of all steps in a row.

    jobs: (kind, the slow rank, seed) of each
    """
    import torch
    import torch.distributed as dist

    from dtcourse import emulation
    from dtcourse.course.judging.trials import begin_together

    rank, size = dist.get_rank(), dist.get_world_size()
    found = []
    for kind, slow, seed in jobs:
        data, compute, update, transfer = (1e-3 * ms for ms in WORK[kind])
        gradient = torch.ones(int(transfer * NETWORK.bandwidth / 8), dtype=torch.double)
        noise = random.Random(f"{seed} {rank}")
        slept = [data, compute / size * (SLOWER[size] if rank == slow else 1.0), update]
        parts = dict.fromkeys(("data", "compute", "averaging", "update"), 0.0)
        begin = begin_together()
        for _ in range(STEPS):
            times = [work * (1 + NOISE * noise.uniform(-1, 1)) for work in slept]
            for part in parts:
                start = emulation.now()
                if part == "averaging":
                    work = dist.all_reduce(gradient, async_op=True)
                    early = emulation.now()
                    work.wait()
                    parts[part] += (early if kind == "clock" else emulation.now()) - start
                else:
                    emulation.sleep(times.pop(0))
                    parts[part] += emulation.now() - start
        found.append([*(t / STEPS for t in parts.values()), (emulation.now() - begin) / STEPS])
    return found


@cache
def cases(size: int) -> list[tuple[tuple[Log], Diagnosis]]:
    """A log of each kind from `size` ranks, and what is right. Which rank is slow is drawn, and so is the noise."""
    jobs = [
        (kind, random.randrange(size) if kind == "rank" else None, random.randrange(10**6))
        for kind in WORK
    ]
    how: dict[str, Any] = {"backend": "ring", "clock": "virtual", "timeout": 60.0}
    run = own_ranks.launched(_train, size, jobs, network=NETWORK, **how)
    found = []
    for (kind, slow, _), by_rank in zip(jobs, zip(*run, strict=True), strict=True):
        seconds, batch = max(times[-1] for times in by_rank), BATCHES[size]
        log = {
            "batch": batch,
            "alone": 1e-3 * sum(WORK[kind][:3]),
            "seconds": seconds,
            "images_per_second": batch / seconds * (size if kind == "counted" else 1),
            "ranks": [
                dict(zip(("data", "compute", "averaging", "update"), times, strict=False))
                for times in by_rank
            ],
        }
        found.append(((log,), (kind, slow)))
    return found


def _describe(log: Log) -> str:
    speed_up = log["alone"] / log["seconds"]
    return f"A job on {len(log['ranks'])} ranks, {speed_up:.2f} times as fast as on one"


def _require(answer: Answer, kinds: tuple[str, ...], hint: str) -> None:
    require_diagnoses(
        answer,
        [case for size in BATCHES for case in cases(size) if case[1][0] in (*kinds, "healthy")],
        describe=_describe,
        hint=hint,
        healthy="Its efficiency is above 90%. What would be left to gain?",
        example=("rank", 2),
        shuffled=True,
    )


@DIAGNOSE.check("what every rank loses", points=4)
def check_parts(answer: Answer) -> None:
    """Network, update and data, each of them the largest loss."""
    _require(
        answer,
        ("network", "update", "data"),
        "Which part of this step would not be there, or would be shorter, if more ranks were as good as they "
        "should be? How long is each of these parts?",
    )


@DIAGNOSE.check("what one rank loses for all", points=3)
def check_rank(answer: Answer) -> None:
    """The others wait for it where they average."""
    _require(
        answer,
        ("rank", "network"),
        "Averaging ends when the last rank has come. How long does it take on the rank that nobody waits for, and what "
        "did that rank do longer than the others?",
    )


@DIAGNOSE.check("figures that cannot be true", points=4)
def check_figures(answer: Answer) -> None:
    """Images counted more than once, and a clock that is read too early."""
    _require(
        answer,
        ("counted", "clock"),
        "Do the figures of this log agree with each other: the images with the batch and the seconds, the parts with "
        "the step?",
    )
