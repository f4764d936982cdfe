"""The best choices of exercise 21-3, by running every one; and the bias of its job is the one of the paper."""

from __future__ import annotations

import pytest

from dtcourse.course.checks.lesson_21_mixture_of_experts import balancing
from dtcourse.course.checks.lesson_21_mixture_of_experts import choose_update as exercise

ALL = exercise.STEADY | exercise.DRIFTING


@pytest.mark.slow
@pytest.mark.stands_on(
    "dtcourse/course/checks/lesson_21_mixture_of_experts/", "tests/course/test_choose_update.py"
)
@pytest.mark.parametrize("stream", list(ALL))
def test_the_best_choices_are_those_that_running_all_of_them_finds(stream):
    found = {choice: balancing.job(choice, *stream) for choice in exercise.CHOICES}
    best = min(found, key=found.__getitem__)
    assert best == ALL[stream]
    # Neither rule without its change, and no change without its rule, is near the best one everywhere.
    assert sum(one[0] <= 1.01 * found[best][0] for one in found.values()) <= 2


def test_a_bias_that_moves_balances_and_one_that_does_not_does_not():
    stream = (1.0, 0.0, 0.0, 1)
    still, moved = (balancing.job(("sign", change), *stream)[0] for change in (0.0, 0.01))
    assert still > 4 and moved < 1.5
