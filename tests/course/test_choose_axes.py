"""The best choices of exercise 20-3, by running every one; and all ways have one process's output and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dtcourse import launch
from dtcourse.course.checks.lesson_20_sequence_and_context_parallel import choose_axes as exercise
from tests.course.searches import require_clear_best

OWN = "dtcourse/course/checks/lesson_20_sequence_and_context_parallel/choose_axes.py"
ALL = exercise.LONG | exercise.SHORT


@pytest.mark.slow
@pytest.mark.stands_on(OWN, "tests/course/test_choose_axes.py", "dtcourse/emulation")
@pytest.mark.parametrize("cluster", list(ALL))
def test_the_best_choices_are_those_that_running_all_of_them_finds(cluster):
    found = exercise.case(cluster).search()
    assert len(found) == len(exercise.CHOICES)
    seconds = {choice: each for choice, (each,) in found.items()}
    require_clear_best(seconds, ALL[cluster], 1.015)


SIZES = 16, 8, 4  # tokens, query heads, key-value heads


def every_way():
    """On a rank: output and gradients by each choice."""
    return [exercise.trained(choice, *SIZES)[1] for choice in exercise.CHOICES]


def test_all_ways_attend_to_the_same():
    tokens, heads, kv_heads = SIZES
    make = torch.Generator().manual_seed(0)
    shapes = (heads, kv_heads, kv_heads, heads)
    *qkv, grad = (torch.randn(1, n, tokens, exercise.DIM, generator=make) for n in shapes)
    for x in qkv:
        x.requires_grad_()
    out = F.scaled_dot_product_attention(*qkv, enable_gqa=True)
    out.backward(grad)
    right = [out.detach(), *(x.grad for x in qkv)]
    how = {"device": "cpu", "backend": "ring", "clock": "virtual"}
    how |= exercise.case(next(iter(ALL))).cluster
    for rank, by_choice in enumerate(launch(every_way, exercise.NODES * exercise.PLACES, **how)):
        for found in by_choice:
            for got, whole in zip(found, right, strict=True):
                torch.testing.assert_close(got, whole.chunk(4, 2)[rank], rtol=1e-4, atol=1e-5)
