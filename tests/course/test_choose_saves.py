"""The best choices of exercise 25c-2 are those that running all of them finds."""

from __future__ import annotations

import pytest

from dtcourse.course.checks.lesson_25c_without_a_restart import choose_saves as exercise
from dtcourse.course.checks.lesson_25c_without_a_restart.failing_runs import CHOICES, best, mean


@pytest.mark.slow
@pytest.mark.stands_on(
    "dtcourse/course/checks/lesson_25c_without_a_restart/", "tests/course/test_choose_saves.py"
)
@pytest.mark.parametrize("job", list(exercise.BEST)[::2], ids=["cheap", "alike", "dear"])
def test_the_best_choice_is_found_by_running_all(job):
    least, *choice = best(job)
    assert tuple(choice) == exercise.BEST[job] or mean(job, *exercise.BEST[job]) == least


@pytest.mark.parametrize("job", list(exercise.BEST), ids=str)
def test_no_neighbour_of_the_best_choice_is_better(job):
    copies, files = (CHOICES.index(one) for one in exercise.BEST[job])
    near = [
        mean(job, CHOICES[c], CHOICES[f])
        for c in range(max(0, copies - 1), min(len(CHOICES), copies + 2))
        for f in range(max(0, files - 1), min(len(CHOICES), files + 2))
    ]
    assert mean(job, *exercise.BEST[job]) == min(near)
