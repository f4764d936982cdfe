"""Traces of a job whose ranks have clocks of their own, which are ahead or behind, and run fast or slow.

A rank computes, calls a collective, and goes on when it has noticed that the collective is over: that is soon after the
last rank's call, and not at quite the same moment on all ranks.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass

STEPS = 40
# ("compute", None, 0, begin, end) or ("all_reduce", ranks of its group, its number in that group, begin, end)
Row = tuple[str, tuple[int, ...] | None, int, float, float]
PAIRS = ((0, 1), (2, 3)), ((0, 2), (1, 3))  # by turns: rank 3 never meets rank 0
SOON, LATE = (
    20e-6,
    5e-3,
)  # seconds until a rank notices that a collective is over: nearly always, and now and then


@dataclass(frozen=True)
class Clock:
    """A rank's own: it shows ahead + rate * t at the true moment t."""

    ahead: float
    rate: float

    def shows(self, moment: float) -> float:
        """At a true moment."""
        return self.ahead + self.rate * moment


@dataclass(frozen=True)
class Drawn:
    """A job's traces, each on its rank's own clock, and the clocks."""

    traces: list[list[Row]]
    clocks: list[Clock]

    def on_first(self, rank: int, own: float) -> float:
        """What rank 0's clock shows when this rank's shows `own`."""
        clock = self.clocks[rank]
        return self.clocks[0].shows((own - clock.ahead) / clock.rate)


def drawn(
    *, drift: bool = False, cut: bool = False, late: bool = False, pairs: bool = False
) -> Drawn:
    """drift: clocks also run fast or slow; cut: a recording begins some collectives after another's; late: now and then
    a rank notices late that a collective is over; pairs: no collective has all ranks
    """
    ranks = 4 if pairs else random.choice((3, 4))
    clocks = [
        Clock(
            random.uniform(-5, 5), 1 + drift * random.choice((-1, 1)) * random.uniform(3e-5, 9e-5)
        )
        for _ in range(ranks)
    ]
    speed = [1.0] * ranks
    speed[random.randrange(1, ranks)] = 1.3
    rows: list[list[Row]] = [[] for _ in range(ranks)]
    now, counts = [0.0] * ranks, defaultdict[tuple[int, ...], int](int)
    first = random.randint(5, 500)  # the recording is not of the job's first steps
    for step in range(STEPS):
        begins = list(now)
        now = [at + speed[rank] * random.uniform(0.9, 1.1) for rank, at in enumerate(now)]
        for rank in range(ranks):
            rows[rank].append(("compute", None, 0, begins[rank], now[rank]))
        for group in PAIRS[step % 2] if pairs else (tuple(range(ranks)),):
            number = first + counts[group]
            counts[group] += 1
            over = max(now[rank] for rank in group) + random.uniform(1e-3, 5e-3)
            for rank in group:
                slow = late and random.random() < 0.1
                end = over + (random.uniform(LATE / 5, LATE) if slow else random.uniform(0, SOON))
                rows[rank].append(("all_reduce", group, number, now[rank], end))
                now[rank] = end
    if cut:
        skipped = random.sample(range(1, 8), ranks)
        rows = [of_rank[2 * n :] for n, of_rank in zip(skipped, rows, strict=True)]
    traces = [
        [(what, group, n, clock.shows(a), clock.shows(b)) for what, group, n, a, b in of_rank]
        for clock, of_rank in zip(clocks, rows, strict=True)
    ]
    return Drawn(traces, clocks)
