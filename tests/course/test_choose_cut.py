"""The best choices of exercise 18-2, by running every one; and the bytes that its job counts are those of a formula."""

from __future__ import annotations

import pytest

from dtcourse import launch
from dtcourse.course.checks.lesson_18_pipeline_schedules import choose_cut as exercise
from dtcourse.course.checks.lesson_18_pipeline_schedules.choose_cut import Given
from tests.course.searches import require_clear_best

OWN = "dtcourse/course/checks/lesson_18_pipeline_schedules"
ALL = exercise.FREE | exercise.MESSAGES | exercise.ROOM


@pytest.mark.slow
@pytest.mark.stands_on(
    f"{OWN}/choose_cut.py",
    "dtcourse/course/judging/pipeline_step.py",
    "tests/course/test_choose_cut.py",
    "dtcourse/emulation",
)
@pytest.mark.parametrize("given", ALL)
def test_the_best_choices_are_those_that_running_all_of_them_finds(given: Given):
    found = exercise.case(given).search()
    assert len(found) == 32
    fitting = {choice: seconds for choice, (seconds, kept) in found.items() if kept <= given.room}
    require_clear_best(fitting, ALL[given], 1.02)


def test_what_a_rank_keeps_is_its_stages_inputs_and_outputs_of_the_micro_batches_under_way():
    """GPipe keeps all four micro-batches; rank 1 of 1F1B one. A number has 4 bytes; the loss keeps another output."""
    choices = [("GPipe", (3, 4)), ("1F1B", (3, 4))]

    def kept() -> list[float]:
        return [exercise.step(choice, exercise.WIDE)[1] for choice in choices]

    cluster = exercise.case(next(iter(exercise.FREE))).cluster
    run = launch(kept, 2, device="cpu", backend="ring", clock="virtual", timeout=60, **cluster)
    first, second = (4 * 16 * sum(exercise.WIDE[a:b]) for a, b in ((0, 4), (3, 8)))
    assert run[0] == [4 * first, 2 * first]
    loss = 4 * 16 * exercise.WIDE[-1]
    assert run[1] == [4 * (second + loss), second + loss]
