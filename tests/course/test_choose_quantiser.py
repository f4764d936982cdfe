"""The best choices of exercise 11-3, by running every one."""

from __future__ import annotations

import pytest

from dtcourse.course.checks.lesson_11_quantised_gradients import choose_quantiser as exercise
from tests.course.searches import require_clear_best
from tests.turns import taking_turns

OWN = "dtcourse/course/checks/lesson_11_quantised_gradients/choose_quantiser.py"
ALL = exercise.SLOW | exercise.FEW | exercise.FAST
FIRST, *OTHERS = ALL


@pytest.mark.parametrize("cluster", [FIRST, *taking_turns(*OTHERS, about=OWN)])
def test_the_best_choices_are_those_that_running_all_of_them_finds(cluster):
    found = exercise.case(cluster).search()
    assert len(found) == len(exercise.CHOICES)
    limit = cluster[-1]
    assert all(abs(off - limit) > 0.02 * limit for _, off in found.values()), "rounding decides"
    within = {choice: seconds for choice, (seconds, off) in found.items() if off <= limit}
    if len(within) == 1:
        assert set(within) == {ALL[cluster]}
    else:
        require_clear_best(within, ALL[cluster], 1.015)
