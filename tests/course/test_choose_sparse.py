"""The best choices of exercise 12-3, by running every one; and what is kept is never near what is asked for."""

from __future__ import annotations

import pytest

from dtcourse.course.checks.lesson_12_sparse_gradients import choose_sparse as exercise
from tests.course.searches import require_clear_best
from tests.turns import taking_turns

OWN = "dtcourse/course/checks/lesson_12_sparse_gradients/choose_sparse.py"
ALL = exercise.FEW | exercise.MANY
FIRST, *OTHERS = ALL


@pytest.mark.parametrize("cluster", [FIRST, *taking_turns(*OTHERS, about=OWN)])
def test_the_best_choices_are_those_that_running_all_of_them_finds(cluster):
    found = exercise.case(cluster).search()
    assert len(found) == len(exercise.CHOICES)
    least = cluster[2]
    assert all(abs(kept - least) > 0.02 for _, kept in found.values())
    enough = {choice: seconds for choice, (seconds, kept) in found.items() if kept > least}
    require_clear_best(enough, ALL[cluster], 1.015)
