"""Shares: whole, exact in sum, within memory, in proportion to speed, and as quick as whole samples can be."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from dtcourse.heterogeneous import (
    ideal_seconds,
    places,
    proportional_shares,
    samples_that_fit,
    step_seconds,
)


def drawn(rng):
    """A batch, speeds, limits and a least that can be met."""
    size = rng.randint(1, 7)
    speeds = [rng.choice([1.0, 1 / 3, rng.uniform(0.05, 5)]) for _ in range(size)]
    least = rng.choice([0, 1, 2])
    total = rng.randint(max(1, least * size), 90)
    limits = [rng.randint(max(1, least), total) for _ in speeds]
    while sum(limits) < total:
        limits[rng.randrange(size)] += 5
    return total, speeds, rng.choice([None, limits]), least


def test_sums_are_exact_and_bounds_hold_for_whatever_is_drawn():
    rng = random.Random(0)
    for _ in range(2000):
        total, speeds, limits, least = drawn(rng)
        shares = proportional_shares(total, speeds, limits, least)
        assert sum(shares) == total and all(type(share) is int for share in shares)
        assert all(least <= s <= m for s, m in zip(shares, limits or shares, strict=True))
        assert [i for part in places(shares) for i in part] == list(range(total))


def test_without_bounds_no_share_is_below_its_proportion_rounded_down():
    rng = random.Random(1)
    for _ in range(500):
        total, speeds, _, _ = drawn(rng)
        shares = proportional_shares(total, speeds)
        for share, speed in zip(shares, speeds, strict=True):
            assert share > total * speed / sum(speeds) - 1 - 1e-9
        slowest = min(speeds)
        assert step_seconds(shares, speeds) <= ideal_seconds(total, speeds) + 1 / slowest + 1e-9


def test_within_bounds_it_is_the_quickest():
    """Against all divisions of a small batch, tried one by one."""
    rng = random.Random(2)
    for _ in range(60):
        speeds = [rng.choice([1.0, 3.0, 10.0, rng.uniform(0.3, 3)]) for _ in range(3)]
        limits = [rng.randint(1, 9) for _ in speeds]
        total = rng.randint(3, min(12, sum(limits)))
        tried = [
            found
            for found in itertools.product(*(range(1, limit + 1) for limit in limits))
            if sum(found) == total
        ]
        best = min(step_seconds(found, speeds) for found in tried)
        mine = step_seconds(proportional_shares(total, speeds, limits, 1), speeds)
        assert mine == pytest.approx(best, rel=1e-12)


def test_one_rank_three_times_slower():
    assert proportional_shares(40, [3, 3, 3, 1]) == [12, 12, 12, 4]
    shares = proportional_shares(32, [3, 3, 3, 1])
    assert shares == [10, 10, 9, 3]
    assert step_seconds(shares, [3, 3, 3, 1]) < 1.1 * ideal_seconds(32, [3, 3, 3, 1])


def test_what_is_left_goes_to_whoever_ends_first_with_it():
    assert proportional_shares(15, [1, 3, 3, 3]) == [1, 5, 5, 4]  # of 1.5 and three times 4.5
    assert proportional_shares(6, [1, 10]) == [0, 6]  # 0.6 s; [1, 5] takes 1.0
    assert proportional_shares(17, [1, 10], least=1) == [1, 16]  # 1.6 s; [2, 15] takes 2.0
    assert proportional_shares(17, [1, 10], [10, 15], 1) == [2, 15]


def test_what_a_rank_has_no_memory_for_the_others_take_by_their_speeds():
    assert proportional_shares(41, [3, 3, 3, 1], [100, 6, 100, 100]) == [15, 6, 15, 5]
    assert proportional_shares(20, [1, 1, 2], [2, 20, 20]) == [2, 6, 12]
    assert proportional_shares(20, [1, 1, 8], [20, 20, 8]) == [6, 6, 8]
    # above one's limit and below another's least at once
    assert proportional_shares(10, [100, 1, 1], [4, 10, 10], 1) == [4, 3, 3]


def test_a_slow_rank_stays_in_sight_where_that_is_asked_for():
    assert proportional_shares(8, [100, 1]) == [8, 0]
    assert proportional_shares(8, [100, 1], least=1) == [7, 1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0, [1.0]), "a batch has 1 sample or more; got 0"),
        ((2.5, [1.0]), "got 2.5"),
        ((4, []), "each rank has a speed above 0"),
        ((4, [1.0, 0.0]), r"got \[1.0, 0.0\]. Leave out a rank"),
        ((4, [1.0, math.nan]), "each rank has a speed above 0"),
        ((4, [1.0, 1.0], [4]), r"2 ranks need as many limits, in whole samples; got \[4\]"),
        ((4, [1.0, 1.0], [4, 0]), "rank 1 has memory for 0 samples, and needs it for 1"),
        ((4, [1.0, 1.0], [4, 1], 2), "rank 1 has memory for 1 sample, and needs it for 2"),
        ((9, [1.0, 1.0], [4, 4]), r"the batch has 9 samples, and the ranks have memory for 8"),
        ((3, [1.0, 1.0], None, 2), "2 ranks cannot have 2 samples each of a batch of 3"),
    ],
)
def test_what_cannot_be_is_said_with_its_numbers(arguments, said):
    with pytest.raises(ValueError, match=said):
        proportional_shares(*arguments)


def test_memory_for_one_sample_or_none():
    assert samples_that_fit(0, 100, 40, 20) == 3
    with pytest.raises(ValueError, match="rank 2 has no memory for one sample: of its 1,000 bytes"):
        samples_that_fit(2, 1000, 990, 11)
    with pytest.raises(ValueError, match="a sample takes more than 0 bytes"):
        samples_that_fit(2, 1000, 990, 0)
    with pytest.raises(ValueError, match="memory of inf bytes"):
        samples_that_fit(2, math.inf, 990, 11)
