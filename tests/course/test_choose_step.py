"""Exercise 06-2's best choice is found without the emulator, so ranks on the emulated clock have to agree with it."""

from __future__ import annotations

import pytest

from dtcourse.course.checks.lesson_06_data_parallel import choose_step
from dtcourse.course.judging.runs import InKernel

# Several micro-batches or one, latencies or bytes, and buckets of one layer or all.
CHOICES = [(1, 4, 2), (2, 3, 1), (3, 4, 4), (3, 2, 2)]


@pytest.mark.parametrize("choice", CHOICES)
def test_the_search_and_the_emulated_clock_agree(choice):
    cluster = (24, 3, 4, 4, 100e-6, 0.3e-3, 0.5e-3, 2e-3)
    assert choice in choose_step.choices(cluster)
    emulated = choose_step.emulated(InKernel({"choose_step": None}), cluster, choice)
    assert emulated == pytest.approx(choose_step.seconds(cluster, choice), rel=1e-9)
