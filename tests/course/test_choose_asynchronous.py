"""The best choices of exercise 09b-3, by running every one."""

from __future__ import annotations

import pytest

from dtcourse.course.checks.lesson_09b_asynchronous_training import choose_asynchronous as exercise
from tests.course.searches import require_clear_best
from tests.turns import taking_turns

OWN = "dtcourse/course/checks/lesson_09b_asynchronous_training/choose_asynchronous.py"
ALL = exercise.ALIKE | exercise.OWN_DATA | exercise.ROUGH
FIRST, *OTHERS = ALL


@pytest.mark.parametrize("job", [FIRST, *taking_turns(*OTHERS, about=OWN)])
def test_the_best_choices_are_those_that_running_all_of_them_finds(job):
    found = {choice: seconds for choice, (seconds,) in exercise.case(job).search().items()}
    assert len(found) == len(exercise.CHOICES)
    best = found[ALL[job]]
    assert best == min(found.values())
    # A choice that is as quick to the digit is as good: a bound that nobody comes to, say.
    others = {choice: each for choice, each in found.items() if choice == ALL[job] or each > best}
    require_clear_best(others, ALL[job], 1.015)
