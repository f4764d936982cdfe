"""The best choices of exercise 27-4, by running every one of many clusters: each way is right somewhere, no patience
is right everywhere, and half of the patiences, for both ways, are not enough.
"""

from __future__ import annotations

import random

import pytest

from dtcourse.course.checks.lesson_27_heterogeneous import choose_patience as exercise

JUDGINGS = 6


def seconds_of(job):
    return {choice: seconds for choice, (seconds,) in exercise.case(job).search().items()}


@pytest.mark.parametrize("costly", [False, True])
def test_each_cost_has_its_way_and_every_patience_but_the_longest_is_right_somewhere(costly):
    random.seed(0)
    right, way = set(), "leave out" if costly else "share"
    for _ in range(JUDGINGS):
        near = []
        for job in exercise.drawn(costly):
            found = seconds_of(job)
            best = min(found, key=found.get)
            assert best[0] == way, job
            other = min(seconds for (name, _), seconds in found.items() if name != way)
            assert other > exercise.NEAR * found[best], job
            near.append({c for c, s in found.items() if s <= exercise.NEAR * found[best]})
            assert len(near[-1]) <= 2, job
            right.add(best[1])
        assert not set.intersection(*near), "one choice for all three"
        for tried in (exercise.PATIENCES[::2], exercise.PATIENCES[1::2], exercise.PATIENCES[:3]):
            assert any(all(patience not in tried for _, patience in one) for one in near), tried
    assert right == ({1, 2, 8, 16} if costly else {1, 2, 4, 8, 16})


def test_spells_are_as_long_as_they_are_said_to_be_and_end_before_one_rank_stays_slow():
    for seed in range(20):
        slow = exercise.slowness(seed, 7, 3.0)
        assert len(slow) == exercise.STEPS
        assert all(sum(one > 1 for one in now) <= 1 for now in slow)
        lasting = slow[-1].index(3.0)
        at = next(step for step, now in enumerate(slow) if now[lasting] > 1)
        assert 58 <= at <= 61 and all(now[lasting] > 1 for now in slow[at:])
        assert slow[at - 1] == slow[at - 2] == [1.0, 1.0, 1.0]
        before = [max(now) > 1 for now in slow[:at]]
        lengths = [len(run) for run in "".join("s" if one else " " for one in before).split()]
        assert lengths and all(length % 7 == 0 for length in lengths)


def test_the_clock_is_the_slowest_rank_s_and_a_move_stops_all(monkeypatch):
    """By hand: one step in which nobody is slow, two in which rank 0 is. Then 60 samples are shared as 8, 26, 26."""
    monkeypatch.setattr(
        exercise, "slowness", lambda *_: [[1.0] * 3, [3.0, 1.0, 1.0], [3.0, 1.0, 1.0]]
    )
    step, slow_step, after = 2e-3 + 20e-3, 3 * (2e-3 + 20e-3), max(3 * (2e-3 + 8e-3), 2e-3 + 26e-3)
    job = (0, 1, 3.0, 2e-3, 0.5)
    assert exercise.run(("share", 1), *job)[0] == pytest.approx(step + slow_step + 0.5 + after)
    assert exercise.run(("share", 2), *job)[0] == pytest.approx(step + 2 * slow_step + 0.5)
    out = 2e-3 + 30e-3
    assert exercise.run(("leave out", 1), *job)[0] == pytest.approx(step + slow_step + 0.5 + out)
