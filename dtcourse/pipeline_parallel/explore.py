"""Schedules to play with: one function of plain numbers, what its controls may be, and settings worth a look.

plots.schedule_explorer(explore.play, explore.PRESETS, **explore.CONTROLS)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dtcourse.pipeline_parallel import schedules, zero_bubble
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.schedules import interleaved_1f1b
from dtcourse.pipeline_parallel.search import search
from dtcourse.pipeline_parallel.simulate import Memory, Simulation, Times, simulate
from dtcourse.pipeline_parallel.validate import validate
from dtcourse.plural import plural

SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {
    "sequential": schedules.sequential,
    "GPipe": schedules.gpipe,
    "1F1B": schedules.one_f_one_b,
    "interleaved 1F1B": lambda ranks, micro_batches: interleaved_1f1b(ranks, micro_batches, 2),
    "looped breadth-first": lambda ranks, m: schedules.breadth_first(ranks, m, 2),
    "ZB-H1": zero_bubble.zb_h1,
    "ZB-H2": zero_bubble.zb_h2,
    "ZB-V": zero_bubble.zb_v,
    "DualPipe-V": zero_bubble.dualpipe_v,
}
SEARCHED = "searched"

CONTROLS: dict[str, Any] = {
    "schedule": [*SCHEDULES, SEARCHED],
    "ranks": (1, 8),
    "micro_batches": (1, 24),
    "forward": (0.25, 4.0, 0.25),
    "backward_input": (0.25, 4.0, 0.25),
    "backward_weight": (0.25, 4.0, 0.25),
    "transfer": (0.0, 2.0, 0.125),
    "slow_rank": (0, 7),
    "slowdown": (1.0, 4.0, 0.25),
    "memory_limit": {"none": math.inf} | {str(limit): limit for limit in range(1, 25)},
}
PRESETS: dict[str, dict[str, Any]] = {
    "GPipe": {"schedule": "GPipe"},
    "1F1B": {"schedule": "1F1B"},
    "two stages a rank": {"schedule": "interleaved 1F1B"},
    "zero bubble": {"schedule": "ZB-H1"},
    "slow links": {"schedule": "1F1B", "transfer": 0.5},
    "one slow rank": {"schedule": "1F1B", "slow_rank": 2, "slowdown": 2.0},
    "searched for three stored": {"schedule": SEARCHED, "memory_limit": 3},
}


def play(
    schedule: str = "1F1B",
    ranks: int = 4,
    micro_batches: int = 8,
    forward: float = 1.0,
    backward_input: float = 1.0,
    backward_weight: float = 1.0,
    transfer: float = 0.0,
    slow_rank: int = 0,
    slowdown: float = 1.0,
    memory_limit: float = math.inf,
) -> Simulation:
    """A schedule by its name (one of SCHEDULES, or "searched": the heuristic's best for these times), simulated.

    forward, backward_input, backward_weight, transfer: seconds of one micro-batch, as in Times
    slow_rank, slowdown: all actions of that rank take so many times as long
    memory_limit: the most that a rank may store, in activations of one micro-batch

    Raises ValueError for a combination that is not possible; a ScheduleError where validate says so.
    """
    if slowdown != 1 and slow_rank >= ranks:
        raise ValueError(
            f"There is no rank {slow_rank} to be slow: {plural(ranks, 'rank')}, from 0."
        )
    factors = [slowdown if rank == slow_rank else 1.0 for rank in range(ranks)]
    f, i, w = (
        [each * factor for factor in factors] for each in (forward, backward_input, backward_weight)
    )
    times = Times(f, i, w, transfer=transfer)
    if schedule == SEARCHED:
        # ZB-H2's memory is the most that helps.
        found = search(times, ranks, micro_batches, min(memory_limit, 2 * ranks - 1))
    elif schedule in SCHEDULES:
        found = SCHEDULES[schedule](ranks, micro_batches)
    else:
        raise ValueError(
            f"The schedules are {', '.join([*SCHEDULES, SEARCHED])}; got {schedule!r}."
        )
    validate(found, memory_limit)
    return simulate(found, times, Memory(limit=None if math.isinf(memory_limit) else memory_limit))
