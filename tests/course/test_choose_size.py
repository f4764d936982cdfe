"""The jobs of exercise 30-4: each number of devices is right somewhere, every batch but the ends is, and what the
solution relies on holds: one best batch for each size, and more GPU-days for more devices.
"""

from __future__ import annotations

import random

import pytest

from dtcourse.course.checks.lesson_30_extreme_scale import choose_size as exercise

JUDGINGS = 6


@pytest.mark.parametrize("failing", [False, True])
def test_each_size_is_right_somewhere_and_no_half_of_the_choices_is_enough(failing):
    random.seed(0)
    sizes, batches = set(), set()
    for _ in range(JUDGINGS):
        near = []
        for job in exercise.drawn(failing):
            best, least = exercise.right(job)
            found = {one: days for one, (days,) in exercise.case(job).search().items()}
            in_time = {one for one, days in found.items() if days <= job[1]}
            assert all(one[0] >= best[0] for one in in_time), job
            near.append({one for one in in_time if one[0] * found[one] <= exercise.NEAR * least})
            assert len(near[-1]) <= 2, job
            sizes.add(best[0])
            batches.add(best[1])
        assert not set.intersection(*near), "one choice for all three"
        assert any(not {batch for _, batch in one} & set(exercise.MIDDLE) for one in near)
        for sized in (exercise.SIZES[::2], exercise.SIZES[1::2], exercise.SIZES[:4]):
            tried = {one for one in exercise.CHOICES if one[0] in sized}
            assert any(not one & tried for one in near), sized
    assert sizes == set(exercise.SIZES[1 : exercise.LAST + 1])
    assert len(batches) >= 4


def test_a_size_has_one_best_batch_and_more_devices_cost_more():
    random.seed(1)
    for training, _ in [job for _ in range(4) for job in exercise.drawn(random.random() < 0.5)]:
        costs, last = [], -1
        for size in exercise.SIZES:
            took = [exercise.days((size, batch), *training)[0] for batch in exercise.BATCHES]
            at = took.index(min(took))
            assert took[: at + 1] == sorted(took[: at + 1], reverse=True)
            assert took[at:] == sorted(took[at:])
            assert at >= last
            last = at
            costs.append(size * took[at])
        assert costs == sorted(costs)


def test_days_are_steps_times_seconds_over_the_time_that_counts():
    """By hand, where nothing fails: 100 steps of noise for 100 without, of 10 s each."""
    training = (8.0, 1.0, 0.125, 100.0, 768.0, 1e15, 1e-6, 0.0)
    (days,) = exercise.days((256, 256), *training)
    assert days == pytest.approx(100 * (1 + 768 / 256) * (8 + 1 + 1) / exercise.DAY, rel=1e-4)
