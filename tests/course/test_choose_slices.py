"""The best choices of exercise 13-3, by running every one; and the lesson's way of sending sends what they send."""

from __future__ import annotations

import pytest

from dtcourse.course.checks.lesson_13_communication_scheduling import choose_slices as exercise
from tests.course.searches import require_clear_best
from tests.turns import taking_turns

OWN = "dtcourse/course/checks/lesson_13_communication_scheduling/choose_slices.py"
ALL = exercise.LATE | exercise.ELSEWHERE
FIRST, *OTHERS = ALL


@pytest.mark.parametrize("cluster", [FIRST, *taking_turns(*OTHERS, about=OWN)])
def test_the_best_choices_are_those_that_running_all_of_them_finds(cluster):
    found = {choice: seconds for choice, (seconds,) in exercise.case(cluster).search().items()}
    assert len(found) == len(exercise.CHOICES)
    require_clear_best(found, ALL[cluster], 1.015)


def test_slices_of_a_large_last_layer_let_the_others_pass():
    forward, sizes, message = FIRST
    whole, sliced = (
        exercise.planned(choice, forward, sizes, message) for choice in ((1, 1, 1), (1, 1, 4))
    )
    assert whole.index(0) > whole.index(4)
    assert sliced.index(0) < len(sliced) - 1 - sliced[::-1].index(4)
    assert sliced.count(4) == 4 and sliced.count(0) == 1
