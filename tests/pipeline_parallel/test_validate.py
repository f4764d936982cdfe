"""The validator: against runs by brute force, with sends that block, and what it says of broken schedules."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dtcourse.pipeline_parallel import schedules, zero_bubble
from dtcourse.pipeline_parallel.actions import Action, Schedule
from dtcourse.pipeline_parallel.validate import ScheduleError, validate

SCHEDULES = [
    schedules.sequential(3, 4),
    schedules.gpipe(3, 4),
    schedules.one_f_one_b(4, 6),
    schedules.interleaved_1f1b(3, 6, 2),
    schedules.breadth_first(2, 4, 3),
    zero_bubble.zb_h1(4, 6),
    zero_bubble.zb_h2(3, 7),
    zero_bubble.zb_v(3, 7),
    zero_bubble.dualpipe_v(2, 6),
]
by_name = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)


def edited(schedule: Schedule, rank: int, actions: list[Action]) -> Schedule:
    lists = [list(one) for one in schedule.ranks]
    lists[rank] = actions
    return replace(schedule, ranks=lists)


def runs_through(schedule: Schedule) -> bool:
    """By brute force: every rank does its next action as soon as it can, until nobody can."""
    done: set[tuple[int, str, int]] = set()
    left = [list(one) for one in schedule.ranks]
    moved = True
    while moved:
        moved = False
        for actions in left:
            if actions and _can(actions[0], done, schedule.num_stages):
                stage, kind, i = actions.pop(0)
                done.add((stage, "B" if kind == "I" else kind, i))
                moved = True
    return not any(left)


def _can(action: Action, done: set[tuple[int, str, int]], stages: int) -> bool:
    stage, kind, i = action
    if kind == "F":
        return stage == 0 or (stage - 1, "F", i) in done
    if kind == "W":
        return (stage, "B", i) in done
    return (stage, "F", i) in done and (stage == stages - 1 or (stage + 1, "B", i) in done)


@by_name
def test_the_order_respects_lists_and_needs(schedule):
    order = validate(schedule)
    for rank, actions in enumerate(schedule):
        assert [one for one in order if schedule.rank_of[one.stage] == rank] == list(actions)
    done: set[tuple[int, str, int]] = set()
    for action in order:
        assert _can(action, done, schedule.num_stages)
        done.add((action.stage, "B" if action.kind == "I" else action.kind, action.micro_batch))


@by_name
def test_sends_that_block_until_they_are_received_all_get_through(schedule):
    """As the docstring says: sends and receives in the one order, on both ranks. Nothing is buffered."""
    programs: list[list[tuple]] = [[] for _ in schedule.ranks]
    for action in validate(schedule):
        here = schedule.rank_of[action.stage]
        programs[here].append(("do", action))
        to = action.stage + (1 if action.kind == "F" else -1)
        if action.kind == "W" or not 0 <= to < schedule.num_stages:
            continue
        if (there := schedule.rank_of[to]) != here:
            programs[here].append(("send", there, action))
            programs[there].append(("receive", here, action))
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            while program and program[0][0] == "do":
                program.pop(0)
                moved = True
            if program and program[0][0] == "send":
                _, there, action = program[0]
                if programs[there] and programs[there][0] == ("receive", rank, action):
                    program.pop(0)
                    programs[there].pop(0)
                    moved = True
    assert not any(programs)


@by_name
def test_it_agrees_with_brute_force_on_shuffled_lists(schedule):
    dice = random.Random(schedule.name)
    verdicts = set()
    for _ in range(60):
        rank = dice.randrange(schedule.num_ranks)
        actions = list(schedule.ranks[rank])
        for _ in range(dice.choice((1, 1, 2, 4))):
            at = dice.randrange(len(actions) - 1)
            to = min(len(actions) - 1, at + dice.choice((1, 2, 5)))
            actions.insert(to, actions.pop(at))
        shuffled = replace(
            edited(schedule, rank, actions), memory_bound=[99.0] * schedule.num_ranks
        )
        verdicts.add(runs_through(shuffled))
        if runs_through(shuffled):
            validate(shuffled)
        else:
            with pytest.raises(ScheduleError):
                validate(shuffled)
    assert verdicts == {True, False}


def broken(rank: int, change) -> Schedule:
    schedule = zero_bubble.zb_h1(2, 3)
    return edited(schedule, rank, change(list(schedule.ranks[rank])))


def swapped(first: str, second: str):
    def change(actions):
        at, to = [str(list(map(repr, actions)).index(one)) for one in (first, second)]
        actions[int(at)], actions[int(to)] = actions[int(to)], actions[int(at)]
        return actions

    return change


# ZB-H1 on two ranks: 0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2; 1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (broken(0, lambda a: a[:-1]), "rank 0 never does 0W of micro-batch 2"),
        (broken(1, lambda a: a[1:]), "rank 1 does 1I0 before 1F0, or never does 1F0"),
        (broken(0, lambda a: [*a, Action(0, "F", 1)]), "rank 0 does 0F1 a second time"),
        (broken(0, lambda a: [*a, Action(0, "B", 1)]), "rank 0 does 0B1 a second time"),
        (broken(0, lambda a: [*a, Action(1, "F", 1)]), "rank 0 does 1F1, and stage 1 is on rank 1"),
        (
            broken(0, lambda a: [*a, Action(2, "F", 1)]),
            "2F1 is of stage 2, and there are 2, from 0",
        ),
        (broken(0, lambda a: [*a, Action(0, "F", 3)]), "of micro-batch 3, and there are 3, from 0"),
        (
            broken(0, lambda a: [*a, Action(0, "X", 1)]),
            "0X1 is of no known kind; there are F, B, I, W",
        ),
        (broken(1, swapped("1F0", "1I0")), "rank 1 does 1I0 before 1F0"),
        (broken(1, swapped("1I0", "1W0")), "rank 1 does 1W0 before 1I0"),
        (
            broken(0, swapped("0F1", "0I1")),
            "rank 0 does 0I1 before 0F1",
        ),
        (
            broken(1, swapped("1I0", "1I2")),
            "rank 1 does 1I2 before 1F2",
        ),
        (
            edited(schedules.one_f_one_b(2, 2), 0, [Action(0, k, i) for i in (0, 1) for k in "FB"]),
            None,  # slow, and right
        ),
        (
            edited(schedules.gpipe(2, 2), 1, [Action(1, k, i) for i in (1, 0) for k in "FB"]),
            None,
        ),
        (
            replace(
                schedules.sequential(2, 2),
                ranks=[
                    [Action(0, k, i) for i in (0, 1) for k in "FB"],
                    [Action(1, k, i) for i in (1, 0) for k in "FB"],
                ],
            ),
            "ranks wait in a circle: rank 0 waits with 0B0 for 1B0 of rank 1, rank 1 waits with 1F1 for 0F1 of rank 0",
        ),
        (
            replace(schedules.gpipe(2, 3), memory_bound=[2, 3]),
            "rank 0 stores 3 at once, of 2 that it may",
        ),
        (
            replace(schedules.gpipe(2, 3), memory_bound=[3]),
            "memory_bound has 1 entry for 2 ranks",
        ),
        (replace(schedules.gpipe(2, 3), rank_of=[0, 2]), "rank_of puts stages on rank 2"),
        (replace(schedules.gpipe(2, 3), rank_of=[0, 0]), "every rank holds equally many stages"),
        (replace(schedules.gpipe(2, 3), micro_batches=0), "it has 0 micro-batches"),
    ],
    ids=lambda one: str(one)[:40] if isinstance(one, str) else "",
)
def test_what_is_wrong_is_said(schedule, says):
    if says is None:
        validate(schedule)
        return
    with pytest.raises(ScheduleError) as caught:
        validate(schedule)
    assert says in str(caught.value)


def test_a_limit_of_the_callers_own_and_many_problems():
    validate(schedules.one_f_one_b(4, 8), memory_limit=4)
    with pytest.raises(ScheduleError, match="rank 0 stores 4 at once, of 3 that it may"):
        validate(schedules.one_f_one_b(4, 8), memory_limit=3)
    empty = replace(schedules.gpipe(2, 8), ranks=[[], []])
    with pytest.raises(ScheduleError, match="and 11 more problems") as caught:
        validate(empty)
    assert len(caught.value.problems) == 16
