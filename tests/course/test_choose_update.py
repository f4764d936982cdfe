"""What exercise 21-3 draws, by running every choice; and the bias of its job is the one of the paper."""

from __future__ import annotations

import random

import pytest

from dtcourse.course.checks.lesson_21_mixture_of_experts import balancing
from dtcourse.course.checks.lesson_21_mixture_of_experts import choose_update as exercise


@pytest.mark.slow
@pytest.mark.stands_on(
    "dtcourse/course/checks/lesson_21_mixture_of_experts/", "tests/course/test_choose_update.py"
)
@pytest.mark.parametrize("kinds", [exercise.STEADY, exercise.DRIFTING], ids=["steady", "drifting"])
def test_what_is_drawn_has_a_best_rule_and_a_best_change(kinds):
    random.seed(0)
    for _ in range(4):
        for (rule, *_), stream in zip(kinds, exercise.drawn(kinds), strict=True):
            found = {one: load for one, (load,) in exercise.case(stream).search().items()}
            best = min(found, key=found.__getitem__)
            assert best[0] == rule
            other = min(load for (one, _), load in found.items() if one != rule)
            assert other > exercise.CLEAR * found[best]
            # Neither rule without its change is near the best one.
            assert sum(load <= 1.01 * found[best] for load in found.values()) <= 2


def test_a_bias_that_moves_balances_and_one_that_does_not_does_not():
    stream = (1.0, 0.0, 0.0, 1)
    still, moved = balancing.loads([("sign", 0.0), ("sign", 0.01)], *stream)
    assert still > 4 and moved < 1.5
