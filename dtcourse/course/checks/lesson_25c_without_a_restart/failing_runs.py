"""Runs that fail, by the clock of the numbers alone: copies in memory are cheap, files survive more.

A run takes steps, copies its state into a neighbour's memory now and then, and to a file now and then. Most failures
are of one process: the neighbour's copy is enough. Some take a node, and the copy with it: then the newest file counts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Job:
    """All times in steps.

    copy, file:       how long the ranks stand still for each
    between:          mean time from one failure to the next
    nodes:            the part of the failures that take a node
    again, from_file: from a failure until training goes on, from a copy and from a file
    steps:            how many have to be done
    """

    copy: float
    file: float
    between: float
    nodes: float
    again: float
    from_file: float
    steps: int = 20_000


CHOICES = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
SEEDS = 12


def took(job: Job, copies: int, files: int, seed: int) -> float:
    """The time of one run, in steps. A copy after every `copies` steps, a file after every `files`."""
    chance = random.Random(seed)
    now, done, copied, filed = 0.0, 0, 0, 0
    fails, node = chance.expovariate(1 / job.between), chance.random() < job.nodes
    limit = 30.0 * job.steps
    while done < job.steps and now < limit:
        # To the next save of either kind, or to the end.
        until = min((done // copies + 1) * copies, (done // files + 1) * files, job.steps)
        saves = job.copy * (until % copies == 0) + job.file * (until % files == 0)
        if now + (until - done) + saves <= fails:
            now, done = now + (until - done) + saves, until
            copied = done if done % copies == 0 else copied
            filed = done if done % files == 0 else filed
            continue
        done = filed if node else max(copied, filed)
        copied = min(copied, done)
        now = fails + (job.from_file if node else job.again)
        fails, node = now + chance.expovariate(1 / job.between), chance.random() < job.nodes
    return now


@cache
def mean(job: Job, copies: int, files: int) -> float:
    """Over all seeds, the same for all choices."""
    return sum(took(job, copies, files, seed) for seed in range(SEEDS)) / SEEDS


@cache
def best(job: Job) -> tuple[float, int, int]:
    """(the least mean, its choice), by trying all of them."""
    return min((mean(job, copies, files), copies, files) for copies in CHOICES for files in CHOICES)
