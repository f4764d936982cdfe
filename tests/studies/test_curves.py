"""What is read off a study's curves."""

from __future__ import annotations

import math

import pytest

from dtcourse.course import curves


def test_steps_to_a_target():
    assert curves.steps_to([2.0, 1.0, 0.5, 0.7], 0.5, every=10) == 20.0
    assert curves.steps_to([2.0, None], 0.5, every=10) == math.inf


def test_the_best_lr_is_that_of_the_median_seed():
    runs = [
        {"0.1": [3.0, 2.0], "0.3": [3.0, 1.0]},
        {"0.1": [3.0, 2.0], "0.3": [3.0, 1.0]},
        {"0.1": [3.0, 0.1], "0.3": [3.0, None]},
    ]
    assert curves.best_lr(runs) == "0.3"
    assert curves.median_at(runs, "0.3", 1) == 1.0
    assert curves.best_lr([{"0.1": [3.0, 2.0], "0.3": [1.0, None]}]) == "0.1"
    assert curves.best_lr([{"0.1": [3.0, 2.0], "0.3": [1.0, None]}], look=0) == "0.3"
    assert curves.quickest_lr(runs, 1.5, every=5) == ("0.3", [5.0, 5.0, math.inf])


@pytest.mark.parametrize("right", [0.01, 0.5, 1.0, 30.0])
def test_a_learning_rate_is_tuned_until_the_best_lies_inside(right):
    asked = []

    def ends(rates):
        asked.extend(rates)
        return [[math.nan if lr > 9 * right else math.log(lr / right) ** 2 for lr in rates]] * 3

    best, tried = curves.tuned_lr(ends, 1.0)
    assert best / right == pytest.approx(1, rel=0.45) and min(tried) < best < max(tried)
    assert sorted(asked) == list(tried), "none is tried twice"


def test_tuning_ends_where_there_is_no_best():
    with pytest.raises(ValueError, match="guess nearer to it"):
        curves.tuned_lr(lambda rates: [[-lr for lr in rates]], 1.0)


def test_the_interval_is_student_s():
    low, high = curves.interval([1.0, 2.0, 3.0])  # 2 degrees of freedom: 4.303
    assert (low, high) == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5), abs=1e-3)


def test_an_interval_of_pairs_needs_numbers_and_two_seeds():
    assert curves.at_end([{"0.1": [3.0, 2.0]}, {"0.1": [3.0, None]}], "0.1") == [2.0, math.inf]
    assert curves.paired_interval([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == curves.interval([1, 2, 3])
    for values in ([1.0], [1.0, math.inf]):
        assert all(map(math.isnan, curves.paired_interval(values, [0.0] * len(values))))
