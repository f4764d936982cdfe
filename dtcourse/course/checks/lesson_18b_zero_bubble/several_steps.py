"""Three steps of a zero-bubble pipeline, with a fault or without: for diagnose_steps.

All steps are one list of actions per rank, which the course's simulator performs: so a fault moves what comes after it,
as it would on ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from dtcourse.pipeline_parallel.actions import Action, Schedule, looped
from dtcourse.pipeline_parallel.simulate import Times, simulate
from dtcourse.pipeline_parallel.zero_bubble import zb_h1, zb_h2

STEPS = 3
# (step, rank, kind, micro-batch of that step, start, end)
Event = tuple[int, int, str, int, float, float]
Diagnosis = tuple[str, int | None]


class Job(NamedTuple):
    """What is drawn.

    base:  the order of each step
    times: F, I, W and a message, in seconds
    rank:  where the fault is, if it is somewhere
    step:  the one that begins too early, where one does
    """

    base: Schedule
    times: tuple[float, float, float, float]
    rank: int
    step: int


def drawn(kind: str, turn: int, draw: Random) -> Job:
    """A job on which the fault is seen: a barrier costs time in ZB-H2; a gradient held back has a rank before it."""
    ranks, unit = draw.randint(3, 6), draw.choice((1e-3, 0.05, 2.0))
    two = kind == "barrier" or (kind != "gradient held back" and turn == 1)
    base = (zb_h2 if two else zb_h1)(ranks, 2 * ranks + draw.randint(0, 3))
    forward, back, weight = (draw.uniform(*ends) for ends in ((0.9, 1.1), (0.9, 1.1), (0.7, 0.9)))
    message = 0.0 if turn == 0 else draw.uniform(0.05, 0.2)
    times = (forward * unit, back * unit, weight * unit, message * unit)
    return Job(base, times, draw.randrange(kind == "gradient held back", ranks), 1 + turn % 2)


def case(kind: str, turn: int, draw: Random) -> tuple[tuple[list[Event], int], Diagnosis]:
    """A timeline and the room of a rank, in micro-batches; and what is to be said of them."""
    job = drawn(kind, turn, draw)
    stored = [most_stored(actions) for actions in job.base]
    events = performed(kind, job, draw)
    draw.shuffle(events)
    somewhere = kind in ("early update", "gradient held back", "over room")
    return (events, max(stored)), (kind, job.rank if somewhere else None)


def most_stored(actions: Sequence[Action]) -> int:
    """Micro-batches from their F to their W, at the worst moment."""
    now = most = 0
    for _, kind, _ in actions:
        now += {"F": 1, "W": -1}.get(kind, 0)
        most = max(most, now)
    return most


def performed(kind: str, job: Job, draw: Random) -> list[Event]:
    """When each action of three steps starts and ends."""
    forward, back, weight, message = job.times
    times = Times(forward, back, weight, transfer=message)
    if kind == "barrier":
        return _one_after_the_other(job, times)
    m = job.base.micro_batches
    lists = []
    for rank, actions in enumerate(job.base):
        one_step = list(actions)
        if kind == "over room" and rank == job.rank:
            one_step = late_weights(one_step, max(map(most_stored, job.base)), draw)
        mine = [Action(s, k, i + step * m) for step in range(STEPS) for s, k, i in one_step]
        if kind == "early update" and rank == job.rank:
            # The last W of a step that is followed by another comes after that one's first forward.
            at = job.step * len(one_step)
            mine[at - 1], mine[at] = mine[at], mine[at - 1]
        if kind == "gradient held back" and rank == job.rank:
            mine = _joined(mine)
        lists.append(mine)
    ranks = job.base.num_ranks
    total = STEPS * m
    found = simulate(Schedule(job.base.name, lists, looped(ranks), total, [total] * ranks), times)
    return _events(found.schedule, found.starts, found.ends, m, back)


def late_weights(actions: Sequence[Action], room: int, draw: Random) -> list[Action]:
    """The same actions, with each W so much later that one micro-batch or two more than the room are stored."""
    wanted = room + draw.randint(1, 2)
    waiting: list[Action] = []
    order: list[Action] = []
    stored = 0
    for action in actions:
        if action.kind == "W":
            waiting.append(action)
            continue
        while waiting and action.kind == "F" and stored >= wanted:
            order.append(waiting.pop(0))
            stored -= 1
        order.append(action)
        stored += action.kind == "F"
    return order + waiting


def _joined(actions: Sequence[Action]) -> list[Action]:
    """Each I and its W as one backward, whose gradient leaves at its end; in I's place."""
    return [
        Action(stage, "B" if kind == "I" else kind, i) for stage, kind, i in actions if kind != "W"
    ]


def _events(
    schedule: Schedule, starts: list[list[float]], ends: list[list[float]], m: int, back: float
) -> list[Event]:
    events: list[Event] = []
    for rank, actions in enumerate(schedule):
        for (_, kind, i), start, end in zip(actions, starts[rank], ends[rank], strict=True):
            step, number = divmod(i, m)
            if kind == "B":
                events.append((step, rank, "I", number, start, start + back))
                events.append((step, rank, "W", number, start + back, end))
            else:
                events.append((step, rank, kind, number, start, end))
    return events


def _one_after_the_other(job: Job, times: Times) -> list[Event]:
    found = simulate(job.base, times)
    events: list[Event] = []
    for step in range(STEPS):
        late = step * found.makespan
        starts = [[late + one for one in row] for row in found.starts]
        ends = [[late + one for one in row] for row in found.ends]
        one = _events(found.schedule, starts, ends, job.base.micro_batches, job.times[1])
        events += [(step, rank, kind, i, a, b) for _, rank, kind, i, a, b in one]
    return events
