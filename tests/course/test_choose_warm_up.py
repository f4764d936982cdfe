"""What exercise 11b-2 draws, by running every choice; its curves; and the seconds of both kinds of steps."""

from __future__ import annotations

import random
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


@pytest.mark.parametrize("links", [exercise.SLOW, exercise.FAST], ids=["slow", "fast"])
def test_what_is_drawn_has_a_best_choice_that_is_clear_and_no_known_one(links):
    random.seed(0)
    best = set()
    for _ in range(8):
        jobs = exercise.drawn(links)
        assert [link for _, link, _ in jobs] == list(links)
        for job in jobs:
            found = {choice: seconds for choice, (seconds,) in exercise.case(job).search().items()}
            assert len(found) == len(exercise.CHOICES)
            right = exercise.case(job).best()
            require_clear_best(found, right, exercise.CLEAR)
            assert right[0] in links[job[1]]
            best.add(right)
    assert len(best) >= 4, "who has them all from somewhere has more to try"


def test_on_one_fast_link_it_is_not_the_best_pair_of_the_middle_warm_up():
    random.seed(1)
    for _ in range(5):
        *_, job = exercise.drawn(exercise.FAST)
        found = exercise.case(job).search()
        at_middle = {pair: found[exercise.MIDDLE, *pair] for pair in {one[1:] for one in found}}
        assert min(at_middle, key=at_middle.get) != exercise.case(job).best()[1:]


@pytest.mark.parametrize("link", exercise.SENDING)
def test_a_step_takes_its_computing_and_the_seconds_that_are_written_down(link):
    for compute in (2e-3, 1e-2):
        run = launch(
            exercise.step_seconds,
            exercise.P,
            compute,
            backend="ring",
            clock="virtual",
            device="cpu",
            network=EmulatedNetwork(*link),
        )
        slowest = [max(seconds) for seconds in zip(*run, strict=True)]
        expected = [compute + sending for sending in exercise.SENDING[link]]
        assert slowest == pytest.approx(expected, rel=1e-4)


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
    exercise.losses.cache_clear()
    for link in exercise.SENDING:
        exercise.case((5e-3, link, 0.3)).search()
    assert exercise.losses.cache_info().misses == len(exercise.WARM_UPS)
