"""The best choices of exercise 12c-1, by running every one; and what they leave out is nearly the least possible."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtcourse.course.checks.lesson_12c_when_it_pays import choose_low_ranks as exercise
from tests.course.searches import require_clear_best

OWN = "dtcourse/course/checks/lesson_12c_when_it_pays/choose_low_ranks.py"
ALL = exercise.SLOW | exercise.QUICK


@pytest.mark.slow
@pytest.mark.stands_on(OWN, "tests/course/test_choose_low_ranks.py", "dtcourse/emulation")
@pytest.mark.parametrize("cluster", list(ALL))
def test_the_best_choices_are_those_that_running_all_of_them_finds(cluster):
    found = exercise.case(cluster).search()
    assert len(found) == len(exercise.CHOICES)
    allowed = cluster[2]
    assert all(abs(left / allowed - 1) > 0.02 for _, left in found.values())
    enough = {choice: seconds for choice, (seconds, left) in found.items() if left < allowed}
    require_clear_best(enough, ALL[cluster], 1.015)


def test_no_approximation_leaves_out_less_than_the_singular_values_that_are_missing():
    falls, scales, *_ = next(iter(ALL))
    ((choice, (_, left)),) = one_run(falls, scales, (2, 4, "whole")).items()
    squares = [values.square() for values in exercise.spectra(falls, scales)]
    missing = sum(s[r:].sum() for s, r in zip(squares, choice, strict=True) if r != "whole")
    least = float(missing / sum(s.sum() for s in squares))
    assert least <= left < 1.1 * least


def one_run(falls, scales, choice):
    """What one choice measures."""
    cluster = falls, scales, 0.1, 1e9, 1e-6, 1e8
    return replace(exercise.case(cluster), choices=[choice]).search()
