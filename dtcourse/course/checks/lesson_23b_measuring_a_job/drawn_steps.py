"""Times of a job's steps before and after a change, drawn so that the true speed-up is known."""

from __future__ import annotations

import random

WARM, STEPS = 10, 300
Job = list[list[float]]  # seconds of each rank, of each step, until it has to wait


def drawn(*, spells: bool) -> tuple[Job, Job, float]:
    """(before, after, speed-up). spells: the whole job is slower, or faster, for some ten steps at a time

    A rank computes for base * (1 + spread * X) seconds, X of the exponential distribution with mean 1, so the slowest
    of p ranks needs base * (1 + spread * (1 + 1/2 + ... + 1/p)) in the mean.
    """
    ranks = random.choice((4, 8))
    (before, mean_before), (after, mean_after) = (_job(ranks, spells) for _ in range(2))
    return before, after, mean_before / mean_after


def _job(ranks: int, spells: bool) -> tuple[Job, float]:
    base, spread = random.uniform(0.08, 0.12), random.choice((0.05, 0.15, 0.3))
    rows: Job = [[] for _ in range(ranks)]
    first, spell = random.uniform(2, 6), random.gauss(0, 1)
    for step in range(WARM + STEPS):
        spell = 0.85 * spell + (1 - 0.85**2) ** 0.5 * random.gauss(0, 1)
        times = (first if step < WARM else 1.0) * (1 + spells * 0.12 * spell)
        for rank in range(ranks):
            rows[rank].append(times * base * (1 + spread * random.expovariate(1)))
    return rows, base * (1 + spread * sum(1 / k for k in range(1, ranks + 1)))
