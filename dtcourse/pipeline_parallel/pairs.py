"""A forward and a backward at once: what DualPipe's order is made for.

In a mixture of experts a layer waits for messages inside its forward and inside its backward. Where a rank has a
forward and a backward that are both ready, one can compute while the other's messages travel. How often that is so
depends on the schedule; its bubble rate does not say it.

A simple model: two actions at once slow each other down in nothing but their computation.

Source: DeepSeek-AI 2024, DeepSeek-V3 Technical Report, 2412.19437, section 3.2.1.
"""

from __future__ import annotations

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


def in_pairs(schedule: Schedule, times: Times, waiting: float) -> Paired:
    """Simulates a schedule, where each rank performs a forward and a backward at once if they follow each other in its
    list and the second one is ready when the first one starts.

    times:   as `simulate` takes them; a sender does not wait
    waiting: the part of each action, W apart, that it waits for messages of its own layers. Alone two actions take a +
             b; at once they take (1 - waiting) (a + b), but not less than the longer one

    Raises ScheduleError if the schedule cannot be run. Raises ValueError if `waiting` is no part, or the sender waits.
    """
    if not 0 <= waiting < 1:
        raise ValueError(
            f"An action waits for a part of its time, from 0 to below 1; got {waiting}."
        )
    if times.sender_waits:
        raise ValueError("sender_waits=True would stop both actions of a pair; it is not modelled.")
    seconds, pairs = times.per_stage(schedule), 0
    free = [0.0] * schedule.num_ranks
    arrives: dict[Action, float] = {}
    before: dict[
        int, tuple[Action, float]
    ] = {}  # by rank, its last action if that has no partner, and its start
    for action in validate(schedule):
        stage, kind, _ = action
        rank, length = schedule.rank_of[stage], seconds[kind][stage]
        ready = _ready(action, schedule, arrives, times.transfer)
        start = max(free[rank], ready)
        other, began = before.pop(rank, (None, 0.0))
        if other and _is_pair(other, action) and ready <= began:
            first = seconds[other.kind][other.stage]
            length = max((1 - waiting) * (first + length), first, length) - first
            pairs += 1
        else:
            before[rank] = action, start
        free[rank] = start + length
        if kind != BACKWARD_WEIGHT:
            arrives[result(action)] = free[rank]
    return Paired(max(free), pairs)


def _ready(
    action: Action, schedule: Schedule, arrives: dict[Action, float], transfer: float
) -> float:
    """When an action's input is on its rank: what another stage has made, or its own forward's activations."""
    stage, kind, i = action
    source = needs(action, schedule.num_stages)
    own = 0.0 if kind == FORWARD else arrives[Action(stage, FORWARD, i)]
    if source is None:
        return own
    far = schedule.rank_of[source.stage] != schedule.rank_of[stage]
    return max(own, arrives[source] + (transfer if far else 0.0))


def _is_pair(one: Action, other: Action) -> bool:
    """A forward and a backward (or its first half)."""
    return BACKWARD_WEIGHT not in (one.kind, other.kind) and (
        (one.kind == FORWARD) != (other.kind == FORWARD)
    )
