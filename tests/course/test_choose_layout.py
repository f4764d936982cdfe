"""The best choices of lesson 22b's exercise, by running every one."""

from __future__ import annotations

import pytest

from dtcourse import launch
from dtcourse.course.checks.lesson_22b_choosing_a_layout import choose_layout, layouts
from dtcourse.course.judging.verdicts import NEAR

CASES = (*choose_layout.ROOMY, *choose_layout.TIGHT)
OWN = (
    "dtcourse/course/checks/lesson_22b_choosing_a_layout/choose_layout.py",
    "dtcourse/course/checks/lesson_22b_choosing_a_layout/clocked_pipeline.py",
    "dtcourse/course/checks/lesson_22b_choosing_a_layout/layouts.py",
    "tests/course/test_choose_layout.py",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.stands_on(*OWN)]


def _all(job):
    return [layouts.step(choice, tuple(job)) for choice in layouts.choices()]


@pytest.mark.parametrize("job", [choose_layout.HEAVY, choose_layout.WIDE], ids=["heavy", "wide"])
def test_no_choice_that_fits_is_faster_and_most_are_slower(job):
    run = launch(
        _all,
        layouts.RANKS,
        job,
        device="cpu",
        **(layouts.options(*choose_layout.LINKS) | {"timeout": 800}),
    )
    costs = {
        choice: tuple(max(one[i] for one in by_rank) for i in (0, 1))
        for choice, by_rank in zip(layouts.choices(), zip(*run, strict=True), strict=True)
    }
    for of, room, best, seconds in CASES:
        if of is not job:
            continue
        fits = {choice: took for choice, (took, held) in costs.items() if held <= room}
        assert fits[best] == min(fits.values()) == pytest.approx(seconds, rel=1e-4)
        assert sum(took <= NEAR * fits[best] for took in fits.values()) <= 2
