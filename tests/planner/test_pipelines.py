"""What is said of a schedule before it is made is what the schedule says, and no simulation ends before its floor."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dtcourse.pipeline_parallel import gpipe
from dtcourse.pipeline_parallel.simulate import Times, simulate
from dtcourse.pipeline_parallel.validate import validate
from dtcourse.planner import Batch, Layout, predict
from dtcourse.planner.layout import V_SHAPED
from dtcourse.planner.pipelines import WHOLE, in_flight, least_makespan, possible, rank_of

SCHEDULES = [
    ("1f1b", 1), ("gpipe", 1), ("zb_h1", 1), ("zb_v", 1), ("dualpipe_v", 1),
    ("interleaved", 2), ("interleaved", 3), ("breadth_first", 2),
]  # fmt: skip


def made(name, pp, chunks, micro_batches):
    """The schedule, or None where there is none."""
    try:
        return Layout(pp=pp, schedule=name, chunks=chunks).schedule_of(micro_batches)
    except ValueError:
        return None


@pytest.mark.parametrize(("name", "chunks"), SCHEDULES)
def test_closed_forms_are_the_schedules_own(name, chunks):
    drawn = random.Random(0)
    for pp in (2, 3, 4):
        for m in (1, 2, 3, 4, 5, 7, 8, 9, 12, 16):
            schedule = made(name, pp, chunks, m)
            assert possible(name, pp, m) == (schedule is not None), (pp, m)
            if schedule is None:
                continue
            assert rank_of(name, pp, chunks) == list(schedule.rank_of)
            assert in_flight(name, pp, chunks, m) == pytest.approx(list(schedule.memory_bound))
            stages = len(schedule.rank_of)
            times = [[drawn.uniform(0.5, 2.0) for _ in range(stages)] for _ in range(3)]
            for transfer in (0.0, 0.3):
                found = simulate(schedule, Times(*times, transfer=transfer)).makespan
                again = simulate(
                    schedule, Times(*times, transfer=transfer), order=validate(schedule)
                )
                assert again.makespan == found
                least = least_makespan(name, schedule.rank_of, *times, m, transfer)
                assert 0.5 * found < least <= found * (1 + 1e-12), (pp, m, transfer)


@pytest.mark.parametrize(("name", "chunks"), [each for each in SCHEDULES if each[0] in WHOLE])
def test_with_equal_stages_the_floor_is_the_makespan(name, chunks):
    """The papers' (p - 1) (F + B) / v, exactly, where rounds have p micro-batches and there are enough of them."""
    pp, m = 4, 8
    schedule = made(name, pp, chunks, m)
    ones = [1.0] * (pp * chunks)
    found = simulate(schedule, Times(ones, ones, ones)).makespan
    assert least_makespan(name, schedule.rank_of, ones, ones, ones, m, 0.0) == found
    assert found == 3 * (m * chunks + pp - 1)


def test_only_the_v_has_both_ends_on_one_rank():
    for name, chunks in SCHEDULES:
        layout = Layout(pp=4, schedule=name, chunks=chunks)
        owner = layout.schedule_of(8).rank_of
        assert layout.ends_apart == (owner[0] != owner[-1]) == (name not in V_SHAPED)


def test_a_function_that_makes_the_schedule_is_asked_for_what_no_closed_form_says(gpt):
    layout = Layout(pp=4, schedule="gpipe")
    by_name, by_function = (
        predict(gpt, "H100 SXM", each, Batch(16))
        for each in (layout, replace(layout, schedule=gpipe))
    )
    assert by_name.seconds == by_function.seconds and by_name.memory == by_function.memory
