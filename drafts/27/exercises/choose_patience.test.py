"""The best choices of exercise 27-4, by running every one: each way and several patiences are right somewhere."""

from __future__ import annotations

import random

import pytest

from dtcourse.course.checks.lesson_27_heterogeneous import choose_patience as exercise

OWN = "dtcourse/course/checks/lesson_27_heterogeneous/choose_patience.py"


@pytest.mark.slow
@pytest.mark.stands_on(OWN, "tests/course/test_choose_patience.py", "dtcourse/emulation", "dtcourse/heterogeneous")
@pytest.mark.parametrize("costly", [False, True])
def test_each_cost_has_its_way_and_no_patience_is_right_everywhere(costly):
    random.seed(0)
    right = set()
    for _ in range(6):
        for job in exercise.drawn(costly):
            found = {choice: seconds for choice, (seconds,) in exercise.case(job).search().items()}
            best = min(found, key=found.get)
            assert best[0] == ("leave out" if costly else "share"), job
            other = min(seconds for (way, _), seconds in found.items() if way != best[0])
            assert other > 1.03 * found[best], job
            near = {choice for choice, seconds in found.items() if seconds <= 1.01 * found[best]}
            assert len(near) <= 3, job
            right.add(best[1])
    assert len(right) >= 3


def test_spells_are_as_long_as_they_are_said_to_be():
    for seed in range(20):
        slow = exercise.slowness(seed, 7, 3.0)
        assert len(slow) == exercise.STEPS
        assert all(sum(one > 1 for one in now) <= 2 for now in slow)
