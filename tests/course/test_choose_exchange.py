"""The best choices of exercise 21b-2, by running every one; and all ways bring back the same."""

from __future__ import annotations

import pytest
import torch

from dtcourse import launch
from dtcourse.course.checks.lesson_21b_expert_parallelism import choose_exchange as exercise
from dtcourse.course.checks.lesson_21b_expert_parallelism import exchanges

OWN = "dtcourse/course/checks/lesson_21b_expert_parallelism/"
ALL = exercise.COSTLY | exercise.CHEAP


@pytest.mark.slow
@pytest.mark.stands_on(OWN, "tests/course/test_choose_exchange.py", "dtcourse/emulation")
@pytest.mark.parametrize("cluster", list(ALL))
def test_the_best_choices_are_those_that_running_all_of_them_finds(cluster):
    found = exercise.case(cluster).search()
    assert len(found) == len(exercise.CHOICES)
    assert min(found, key=found.__getitem__) == ALL[cluster]


def results():
    """On a rank: what came back, whole and at once; in chunks, and in two steps."""
    choices = ("at once", 1), ("at once", 4), ("two steps", 1), ("two steps", 6)
    return [exchanges.computed(choice, exercise.ROWS, 16)[1] for choice in choices]


def own_rows(rank):
    """What they should be: each block, through the experts of the rank that it went to."""
    parts = []
    x = torch.randn(
        exchanges.RANKS,
        exercise.ROWS,
        exchanges.WIDTH,
        generator=torch.Generator().manual_seed(rank),
    )
    for other, block in enumerate(x):
        make = torch.Generator().manual_seed(other)
        torch.randn(exchanges.RANKS, exercise.ROWS, exchanges.WIDTH, generator=make)
        up, down = (
            torch.randn(s, generator=make) for s in ((exchanges.WIDTH, 16), (16, exchanges.WIDTH))
        )
        parts.append((block @ up).relu() @ down)
    return torch.stack(parts)


def test_all_ways_bring_back_what_the_experts_computed():
    how = {"device": "cpu", "backend": "ring", "clock": "virtual"}
    how |= exercise.case(next(iter(ALL))).cluster
    for rank, found in enumerate(launch(results, exchanges.RANKS, **how)):
        right = own_rows(rank)
        for one in found:
            torch.testing.assert_close(one, right, rtol=1e-4, atol=1e-4)
