"""A schedule for given times and memory: the zero-bubble paper's heuristic (2401.10241, section 3.1).

The handcrafted schedules are for F = I = W and free transfers. Where that is not so, the order that is best depends on
the numbers. The heuristic plays the step through, rank by rank in the order of time, and decides whenever a rank is
free:

    backward-input, if its gradient is there       others wait for it
    else a forward, if there is room for it        it fills the bubble before the first backward, and feeds the next
                                                   ranks
    else a backward-weight                         it fills any other gap, and gives room back

Four choices are open, and which is best is found by trying: how many forwards a rank takes in before its first
backward; whether in the steady state a forward or a backward-input goes first where both could; whether a forward may
delay a gradient that is on its way; and how much of a gap that is shorter than W is worth filling. Each try is
simulated, and the best one is returned.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from dtcourse.pipeline_parallel.actions import Schedule, looped
from dtcourse.pipeline_parallel.playing import Step
from dtcourse.pipeline_parallel.schedules import at_least
from dtcourse.pipeline_parallel.simulate import Memory, Simulation, Times, simulate
from dtcourse.pipeline_parallel.validate import stored
from dtcourse.pipeline_parallel.zero_bubble import zb_h1, zb_h2

# In the steady state: which goes first where both could; "in turn" waits for the one whose turn it is.
STEADY = ("backward", "forward", "in turn")
PARTS = (0.0, 0.5, 1.0)
KEPT = 12
SAME = 1e-9  # two costs, relative to them


def search(
    times: Times,
    stages: int,
    micro_batches: int,
    memory_limit: float,
    memory: Memory | None = None,
) -> Schedule:
    """The best schedule that is found, for one stage a rank: the smallest `Simulation.cost`, of those alike in it the
    smallest makespan, then the smallest memory. Alike is what differs by less than a part in 1e9.

    memory_limit: the most that a rank may have stored, in the unit of `memory`; by default in activations of one
                  micro-batch, each counted until its backward-weight
    memory:       what a forward stores and a backward-input leaves

    ZB-H1 and ZB-H2 are among the tries wherever they fit, so the result is never worse than those.

    Raises ValueError if not even one micro-batch fits.
    """
    at_least(1, stages, "stage")
    at_least(1, micro_batches, "micro-batch")
    memory = memory or Memory()
    if memory_limit < memory.stored:
        raise ValueError(
            f"A limit of {memory_limit:g} holds no forward, which "
            f"stores {memory.stored:g}; no schedule can do with less."
        )
    limited = Memory(memory.stored, memory.kept, memory_limit)
    choices = _choices(times, stages, micro_batches, limited)
    tries = [zb_h1(stages, micro_batches), zb_h2(stages, micro_batches)]
    tries += [_play(times, stages, micro_batches, limited, *one) for one in choices]
    found = [simulate(one, times, limited) for one in tries]
    return _best([one for one in found if one.fits]).schedule


def _best(found: list[Simulation]) -> Simulation:
    """The first of those that are best by each measure in turn; sums in another order differ in their last digits."""
    for number in range(len(_goodness(found[0]))):
        least = min(_goodness(one)[number] for one in found)
        found = [one for one in found if _goodness(one)[number] <= least + SAME * abs(least)]
    return found[0]


def _goodness(found: Simulation) -> tuple[float, float, float]:
    """Cost, then makespan, then memory."""
    return found.cost, found.makespan, max(found.peak_memory)


def _in_digits(goodness: tuple[float, ...]) -> tuple[float, ...]:
    """To sort by: without the digits in which equal sums differ."""
    return tuple(float(f"{one:.9g}") for one in goodness)


def _choices(
    times: Times, stages: int, micro_batches: int, memory: Memory
) -> list[tuple[Any, ...]]:
    """All of them; for many micro-batches those that were good with fewer,
    since what they differ in is begin and end.
    """
    most = int(memory.limit / memory.stored) if memory.limit and memory.stored else micro_batches
    choices = list(product(_warmups(stages, most), STEADY, PARTS, PARTS))
    short = 4 * stages
    if micro_batches <= short:
        return choices
    tried = [
        (
            _in_digits(
                _goodness(simulate(_play(times, stages, short, memory, *one), times, memory))
            ),
            n,
        )
        for n, one in enumerate(choices)
    ]
    return [choices[n] for _, n in sorted(tried)[:KEPT]]


def _play(times: Times, stages: int, micro_batches: int, memory: Memory, *choices: Any) -> Schedule:
    lists = Step(times, stages, micro_batches, memory, *choices).play()
    loose = Schedule("searched", lists, looped(stages), micro_batches, [micro_batches] * stages)
    return replace(loose, memory_bound=stored(loose))


def _warmups(stages: int, most: int) -> list[list[int]]:
    """By rank, how many forwards may precede the first backward-input: 1F1B's, ZB-H2's, steps between them,
    no limit.
    """
    ahead = [stages - 1 - rank for rank in range(stages)]
    between = [[min(most, 1 + tenths * n // 10) for n in ahead] for tenths in range(10, 23, 2)]
    return [*between, [min(most, 1 + 5 * n // 2) for n in ahead], [most] * stages]
