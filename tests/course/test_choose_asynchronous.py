"""What exercise 09b-3 draws, by running every choice."""

from __future__ import annotations

import random

import pytest

from dtcourse.course.checks.lesson_09b_asynchronous_training import choose_asynchronous as exercise
from tests.course.searches import require_clear_best


@pytest.mark.parametrize("name", ["ALIKE", "OWN_DATA", "ROUGH"])
def test_what_is_drawn_has_a_best_choice_that_is_clear_and_no_known_one(name):
    random.seed(0)
    kinds, best = getattr(exercise, name), set()
    for _ in range(3):
        for kind, workers in zip(kinds, exercise.drawn(kinds), strict=True):
            found = {choice: seconds for choice, (seconds,) in workers.search().items()}
            assert len(found) == len(exercise.CHOICES)
            right = workers.best()
            assert right[0] in kind.rules
            # A choice that is as quick to the digit is as good: a bound that nobody comes to, say.
            others = {c: each for c, each in found.items() if c == right or each > found[right]}
            require_clear_best(others, right, exercise.CLEAR)
            best.add(right)
            if name == "OWN_DATA":
                assert right[1] not in (exercise.AHEAD[0], exercise.AHEAD[-1]), (
                    "between the extremes"
                )
    assert len(best) >= 2
