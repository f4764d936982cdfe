"""The best choices of exercise 19-4, by running every one; and all choices train the same."""

from __future__ import annotations

import pytest
import torch

from dtcourse import launch
from dtcourse.course.checks.lesson_19_tensor_parallel import choose_ranks as exercise
from tests.course.searches import require_clear_best

OWN = "dtcourse/course/checks/lesson_19_tensor_parallel/choose_ranks.py"
ALL = exercise.NARROW | exercise.WIDE


@pytest.mark.slow
@pytest.mark.stands_on(OWN, "tests/course/test_choose_ranks.py", "dtcourse/emulation")
@pytest.mark.parametrize("cluster", list(ALL))
def test_the_best_choices_are_those_that_running_all_of_them_finds(cluster):
    found = exercise.case(cluster).search()
    assert len(found) == len(exercise.CHOICES)
    seconds = {choice: each for choice, (each,) in found.items()}
    require_clear_best(seconds, ALL[cluster], 1.015)


def by_choice(choices):
    """On a rank: output and gradients by each choice."""
    return [exercise.trained(choice, 6, 4, (8, 4, 12))[1] for choice in choices]


def test_all_choices_train_the_same():
    choices = [(1, 1, 1), (2, 4, 1), (4, 2, 4)]
    how = {"device": "cpu", "backend": "ring", "clock": "virtual"}
    how |= exercise.case(next(iter(ALL))).cluster
    run = launch(by_choice, exercise.NODES * exercise.PLACES, choices, **how)
    for rank, (whole, *others) in enumerate(run):
        for choice, found in zip(choices[1:], others, strict=True):
            slices = [(1, 0, None)] * 2 + [
                (degree, rank % degree, dim) for degree in choice for dim in (1, 0)
            ]
            for got, right, (degree, place, dim) in zip(found, whole, slices, strict=True):
                mine = right if dim is None else right.chunk(degree, dim)[place]
                torch.testing.assert_close(got, mine, rtol=1e-4, atol=1e-5)
