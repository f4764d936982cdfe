"""Exercise 07b-3's best choice is found without the emulator, so both have to agree on every choice."""

from __future__ import annotations

import pytest

from dtcourse import launch
from dtcourse.course.checks.lesson_07b_data_stalls import choose_loading

SMALL = [
    (50, 3, 2, 120, 3, 3e-3, 0.5e-3, 2e-3, 1e-3),
    (37, 2, 3, 60, 2, 10e-3, 1e-3, 0.5e-3, 2e-3),
]


@pytest.mark.parametrize("cluster", SMALL)
def test_the_search_and_the_emulated_clock_agree(cluster):
    choices = choose_loading.choices(cluster)
    assert {kept for *_, kept in choices} == set(choose_loading.KEPT)
    emulated = launch(choose_loading._emulated, 1, None, cluster, choices, **choose_loading.OPTIONS)
    predicted = [choose_loading.seconds(cluster, choice) for choice in choices]
    assert emulated[0] == pytest.approx(predicted, rel=1e-9)
