"""The best choices of exercise 11b-2, by running every one; and the seconds of both kinds of steps, by running them."""

from __future__ import annotations

import pytest

from dtcourse import launch
from dtcourse.course.checks.lesson_11b_one_bit import choose_warm_up as exercise
from dtcourse.emulation import EmulatedNetwork
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
