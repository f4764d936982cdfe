"""A forward and a backward at once: what DualPipe's order is made for.

In a mixture of experts a layer waits for messages inside its forward and inside its backward. Where a rank has a
forward and a backward that are both ready, one can compute while the other's messages travel. How often that is so
depends on the schedule; its bubble rate does not say it.

A simple model: two actions at once slow each other down in nothing but their computation.

Source: DeepSeek-AI 2024, DeepSeek-V3 Technical Report, 2412.19437, section 3.2.1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from dtcourse.pipeline_parallel.actions import (
    BACKWARD_WEIGHT,
    FORWARD,
    Action,
    Schedule,
    needs,
    result,
)
from dtcourse.pipeline_parallel.simulate import Times
from dtcourse.pipeline_parallel.validate import validate


class Paired(NamedTuple):
    """What `in_pairs` found.

    makespan: seconds from the first rank's first action to the end of the last one, without the optimizer
    pairs:    how many times a rank performs two actions at once, on all ranks together
    """

    makespan: float
    pairs: int


def in_pairs(schedule: Schedule, times: Times, waiting: float, *, together: bool = False) -> Paired:
    """Simulates a schedule, where each rank performs a forward and a backward at once if they follow each other in its
    list and the second one is ready when the first one starts.

    times:    as `simulate` takes them; a sender does not wait
    waiting:  the part of each action, W apart, that it waits for messages of its own layers. Alone two actions take a +
              b; at once they take (1 - waiting) (a + b), but not less than the longer one
    together: whether both results of a pair leave at its end, as in PyTorch's OVERLAP_F_B and in DeepSeek's formula for
              DualPipe-V's bubble. Else the first of the two ends as if it were alone, and the second gains all that is
              saved

    Raises ScheduleError if the schedule cannot be run. Raises ValueError if `waiting` is no part, or the sender waits.
    """
    if not 0 <= waiting < 1:
        raise ValueError(
            f"An action waits for a part of its time, from 0 to below 1; got {waiting}."
        )
    if times.sender_waits:
        raise ValueError("sender_waits=True would stop both actions of a pair; it is not modelled.")
    validate(schedule)
    seconds, pairs, ranks = times.per_stage(schedule), 0, range(schedule.num_ranks)
    free = [0.0] * schedule.num_ranks
    place = [0 for _ in ranks]  # by rank, how many of its actions are done
    arrives: dict[Action, float] = {}

    def start(rank: int, ahead: int = 0) -> float:
        """When a rank's next action could start, or (ahead=1) when the input of the one after it is there."""
        if place[rank] + ahead >= len(schedule.ranks[rank]):
            return math.inf
        ready = _ready(schedule.ranks[rank][place[rank] + ahead], schedule, arrives, times.transfer)
        return ready if ahead else max(free[rank], ready)

    # In the order of time: what an action can have got before it starts has been simulated by then.
    while (begin := start(rank := min(ranks, key=start))) < math.inf:
        action, *after = schedule.ranks[rank][place[rank] : place[rank] + 2]
        length = seconds[action.kind][action.stage]
        ends = [(action, begin + length)]
        if after and _is_pair(action, after[0]) and start(rank, 1) <= begin * (1 + 1e-12):
            second = seconds[after[0].kind][after[0].stage]
            end = begin + max((1 - waiting) * (length + second), length, second)
            ends = [(action, end if together else begin + length), (after[0], end)]
            pairs += 1
        place[rank] += len(ends)
        free[rank] = ends[-1][1]
        for one, end in ends:
            arrives[one if one.kind == BACKWARD_WEIGHT else result(one)] = end
    return Paired(max(free), pairs)


def _ready(
    action: Action, schedule: Schedule, arrives: dict[Action, float], transfer: float
) -> float:
    """When an action's input is on its rank: what another stage has made, or its own forward's activations. Infinity if
    that is not known yet.
    """
    stage, kind, i = action
    source = needs(action, schedule.num_stages)
    own = 0.0 if kind == FORWARD else arrives.get(Action(stage, FORWARD, i), math.inf)
    if source is None:
        return own
    far = schedule.rank_of[source.stage] != schedule.rank_of[stage]
    return max(own, arrives.get(source, math.inf) + (transfer if far else 0.0))


def _is_pair(one: Action, other: Action) -> bool:
    """A forward and a backward (or its first half)."""
    return BACKWARD_WEIGHT not in (one.kind, other.kind) and (
        (one.kind == FORWARD) != (other.kind == FORWARD)
    )
