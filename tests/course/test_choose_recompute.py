"""The best choices of exercise 17b-2, by running every one."""

from __future__ import annotations

import pytest

from dtcourse.course.checks.lesson_17b_stash_and_accumulation import choose_recompute as exercise
from dtcourse.course.checks.lesson_17b_stash_and_accumulation.choose_recompute import Given
from tests.course.searches import require_clear_best

OWN = "dtcourse/course/checks/lesson_17b_stash_and_accumulation"
ALL = exercise.FREE | exercise.GAP | exercise.BOTH


@pytest.mark.slow
@pytest.mark.stands_on(
    f"{OWN}/choose_recompute.py",
    "dtcourse/course/judging/pipeline_step.py",
    "tests/course/test_choose_recompute.py",
    "dtcourse/emulation",
)
@pytest.mark.parametrize("given", ALL)
def test_the_best_choices_are_those_that_running_all_of_them_finds(given: Given):
    found = exercise.case(given).search()
    assert len(found) == 24
    fitting = {one: each[0] for one, each in found.items() if max(each[1:]) <= given.room}
    require_clear_best(fitting, ALL[given], 1.015)
    # What is stored is what the answer is told, in each of the choices.
    _, stored, boundary, *_ = exercise.case(given).told
    for (m, which), (_, *kept) in found.items():
        told = [
            exercise.BATCH // m * (one + (m - 1) * boundary) if again else exercise.BATCH * one
            for one, again in zip(stored, which, strict=True)
        ]
        assert kept == told
