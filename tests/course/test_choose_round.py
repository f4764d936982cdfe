"""The best choices of exercise 28b-5, by running every one of many federations: each kind has its share, no choice is
near the best of all, and what the closed forms say is what drawn rounds and tried groups do.
"""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from dtcourse.course.checks.lesson_28b_privacy import choose_round as exercise


@pytest.mark.parametrize("kind", exercise.KINDS)
def test_each_kind_of_federation_has_its_share(kind):
    random.seed(0)
    numbers = set()
    for _ in range(4):
        near = []
        for job in exercise.drawn(kind, kind, kind):
            (asked, share), least = exercise.best_of(job)
            assert share == exercise.KINDS[kind][2]
            assert exercise.ASKED[0] < asked < exercise.ASKED[-1]
            numbers.add(asked)
            found = exercise.case(job).search()
            near.append(
                {c for c, (s, bad) in found.items() if not bad and s <= exercise.NEAR * least}
            )
        # no one choice is near the best of all three, and few are near the best of one
        assert not set.intersection(*near)
        assert max(map(len, near)) <= 4
    assert len(numbers) >= 3


def test_no_share_and_no_number_is_right_everywhere():
    random.seed(1)
    best = [exercise.best_of(job)[0] for job in exercise.drawn(*exercise.KINDS)]
    assert len({share for _, share in best}) == 3
    assert len({asked for asked, _ in best}) >= 2


def test_the_chance_is_that_of_drawn_rounds():
    torch.manual_seed(0)
    for asked, threshold, wanted, sends, stays in (
        (40, 22, 25, 0.7, 0.95),
        (60, 45, 40, 0.85, 0.96),
        (40, 30, 20, 0.7, 0.9),
    ):
        sent = torch.rand(20_000, asked) < sends
        stayed = sent & (torch.rand(20_000, asked) < stays)
        counts = (sent.sum(1) >= wanted) & (stayed.sum(1) >= threshold)
        found = exercise.chance(asked, threshold, wanted, sends, stays)
        assert abs(found - counts.double().mean().item()) < 0.02
    assert exercise.chance(40, 30, 41, 0.9, 0.9) == 0.0


def test_two_groups_that_both_reach_the_threshold_uncover_a_client():
    """Tried: how many of the honest clients hear one list, and how many the other one."""
    for asked, part, share in itertools.product((40, 50, 75), (0.0, 0.2, 0.4), exercise.SHARES):
        threshold, helpers = exercise.threshold_of(asked, share), int(part * asked)
        honest = asked - helpers
        both = any(
            helpers + one >= threshold and helpers + honest - one >= threshold
            for one in range(honest + 1)
        )
        _, uncovered = exercise.run((asked, share), 20, part, 0.9, 0.9, 1.0, 1e-4)
        assert uncovered == (honest if both else 0)


def test_a_share_is_rounded_up_and_no_further():
    assert exercise.threshold_of(40, 0.55) == 22
    assert exercise.threshold_of(50, 0.55) == 28
    assert exercise.threshold_of(60, 0.85) == 51
