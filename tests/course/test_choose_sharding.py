"""The best choices of lesson 16's exercise, by running every one."""

from __future__ import annotations

import pytest

from dtcourse.course.checks.lesson_16_zero_and_fsdp import choose_sharding as exercise
from dtcourse.course.judging.verdicts import NEAR

CASES = (*exercise.TIGHT, *exercise.KEPT, *exercise.ACROSS)
OWN = ("dtcourse/course/checks/lesson_16_zero_and_fsdp/choose_sharding.py",)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.stands_on(*OWN, "tests/course/test_choose_sharding.py", "dtcourse/sharding"),
]


@pytest.mark.parametrize(("case", "best"), CASES)
def test_no_choice_that_fits_is_faster_and_some_are_slower(case, best):
    costs = {choice: exercise.measure(case, choice) for choice in exercise.choices(case)}
    fits = {choice: seconds for choice, (seconds, held) in costs.items() if held <= case.room}
    assert fits[best] == min(fits.values())
    assert sum(seconds <= NEAR * fits[best] for seconds in fits.values()) <= len(fits) // 2
    # No rule of one sentence is right: another choice is faster where there is room.
    assert min(seconds for seconds, _ in costs.values()) < fits[best] or len(fits) == len(costs)
