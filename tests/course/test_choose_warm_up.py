"""The best choices of exercise 11b-2, by running every one; its curves; and the seconds of both kinds of steps."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
import torch.nn.functional as F

from dtcourse import launch
from dtcourse.course.checks.lesson_11b_one_bit import choose_warm_up as exercise
from dtcourse.course.replicas import Digits
from dtcourse.emulation import EmulatedNetwork
from dtcourse.models import MLP
from tests.course.searches import require_clear_best
from tests.turns import taking_turns

OWN = "dtcourse/course/checks/lesson_11b_one_bit/choose_warm_up.py"
FIRST, *OTHERS = exercise.SLOW | exercise.FAST


@pytest.mark.parametrize("job", [FIRST, *taking_turns(*OTHERS, about=OWN)])
def test_the_best_choices_are_those_that_running_all_of_them_finds(job):
    found = {choice: seconds for choice, (seconds,) in exercise.case(job).search().items()}
    assert len(found) == len(exercise.CHOICES)
    require_clear_best(found, (exercise.SLOW | exercise.FAST)[job], 1.015)


@pytest.mark.parametrize("link", exercise.SECONDS)
def test_a_step_takes_the_seconds_that_are_written_down(link):
    compute, latency, bandwidth = link
    run = launch(
        exercise.step_seconds,
        exercise.P,
        compute,
        backend="ring",
        clock="virtual",
        device="cpu",
        network=EmulatedNetwork(latency, bandwidth),
    )
    slowest = [max(seconds) for seconds in zip(*run, strict=True)]
    assert slowest == pytest.approx(exercise.SECONDS[link], rel=1e-4)


def test_a_curve_is_that_of_four_ranks_with_one_choice():
    """By autograd, tensor by tensor: the steps before and after the end of its warm-up."""
    warm_up, eps, lr = 5, 1e-4, 0.16
    digits = Digits.drawn(600, 0, torch.float64)
    pools = digits.pools(1, by_class=False).expand(exercise.P, -1)
    model = MLP(exercise.SIZES, seed=0).double()
    kinds = [
        (p, torch.zeros_like(p), torch.zeros_like(p), p.new_zeros(exercise.P, *p.shape))
        for p in model.parameters()
    ]
    found = []
    for step, chosen in enumerate(islice(digits.batches(pools, exercise.BATCH, 1), 12), 1):
        losses = [F.cross_entropy(model(digits.x[mine]), digits.y[mine]) for mine in chosen]
        by_rank = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
        with torch.no_grad():
            for (p, m, v, left), grads in zip(kinds, zip(*by_rank, strict=True), strict=True):
                if step <= warm_up:
                    g = sum(grads) / exercise.P
                    m.mul_(0.9).add_(0.1 * g)
                    v.mul_(0.999).add_(0.001 * g**2)
                else:
                    wanted = [0.9 * m + 0.1 * g + rest for g, rest in zip(grads, left, strict=True)]
                    sent = [one.abs().mean() * one.sign() for one in wanted]
                    for rest, one, part in zip(left, wanted, sent, strict=True):
                        rest.copy_(one - part)
                    m.copy_(sum(sent) / exercise.P)
                root = (v / (1 - 0.999 ** min(step, warm_up))).sqrt()
                p.sub_(lr * m / (1 - 0.9**step) / (root + eps))
            found.append(F.cross_entropy(model(digits.x_rest), digits.y_rest).item())
    assert exercise.losses(warm_up)[eps, lr][:12] == pytest.approx(found, rel=1e-10)


def test_curves_are_computed_once_for_all_jobs():
    for job in exercise.SLOW | exercise.FAST:
        exercise.case(job).search()
    assert exercise.losses.cache_info().misses == len(exercise.WARM_UPS)
