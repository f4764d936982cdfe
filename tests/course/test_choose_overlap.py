"""The best choices of exercise 19b-2, by running every one; and all ways have the same gradients."""

from __future__ import annotations

import pytest
import torch

from dtcourse import launch
from dtcourse.course.checks.lesson_19b_overlapped_tensor_parallel import choose_overlap as exercise
from dtcourse.verify import compare

OWN = "dtcourse/course/checks/lesson_19b_overlapped_tensor_parallel/choose_overlap.py"
ALL = exercise.QUICK | exercise.LONG


@pytest.mark.slow
@pytest.mark.stands_on(OWN, "tests/course/test_choose_overlap.py", "dtcourse/emulation")
@pytest.mark.parametrize("cluster", list(ALL))
def test_the_best_choices_are_those_that_running_all_of_them_finds(cluster):
    found = exercise.case(cluster).search()
    assert len(found) == len(exercise.CHOICES)
    assert min(found, key=found.__getitem__) == ALL[cluster]


def gradients():
    """On a rank: of x by parts and, of all ranks' tokens, by the ring; and of both slices of weights by each way."""
    import torch.distributed as dist

    found = []
    for choice in (("all-reduce", 1), ("all-reduce", 8), exercise.RING):
        _, (x, up, down) = exercise.trained(choice, 16, 64)
        if choice == exercise.RING:
            parts = [torch.empty_like(x) for _ in range(exercise.RANKS)]
            dist.all_gather(parts, x)
            x = torch.cat(parts)
        found.append({"x": x, "up": up, "down": down})
    return found


def test_all_ways_train_the_same():
    cluster = exercise.case(next(iter(ALL))).cluster
    how = {"device": "cpu", "backend": "ring", "clock": "virtual"} | cluster
    for one, parts, ring in launch(gradients, exercise.RANKS, **how):
        compare(parts, one, 1e-5, norm=2)
        compare(ring, one, 1e-5, norm=2)
