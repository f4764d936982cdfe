"""The best choices of exercise 13b-1, by running every one."""

from __future__ import annotations

import pytest

from dtcourse.course.checks.lesson_13b_messages_and_ports import choose_sending as exercise
from tests.course.searches import require_clear_best
from tests.turns import taking_turns

OWN = "dtcourse/course/checks/lesson_13b_messages_and_ports/choose_sending.py"
ALL = exercise.BYTES | exercise.MESSAGES
FIRST, *OTHERS = ALL


@pytest.mark.parametrize("cluster", [FIRST, *taking_turns(*OTHERS, about=OWN)])
def test_the_best_choices_are_those_that_running_all_of_them_finds(cluster):
    found = {choice: seconds for choice, (seconds,) in exercise.case(cluster).search().items()}
    assert len(found) == len(exercise.CHOICES)
    require_clear_best(found, ALL[cluster], 1.015)
