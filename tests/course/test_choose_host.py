"""The best choices of exercise 16b-3, by running every one."""

from __future__ import annotations

import pytest

from dtcourse import launch
from dtcourse.course.checks.lesson_16b_fsdp_in_practice import choose_host as exercise
from dtcourse.verify import compare

OWN = "dtcourse/course/checks/lesson_16b_fsdp_in_practice/choose_host.py"
ALL = exercise.ROOM | exercise.LITTLE | exercise.LINK


@pytest.mark.slow
@pytest.mark.stands_on(OWN, "tests/course/test_choose_host.py", "dtcourse/emulation")
@pytest.mark.parametrize("cluster", list(dict.fromkeys(cluster for cluster, _ in ALL)))
def test_the_best_choices_are_those_that_running_all_of_them_finds(cluster):
    found = exercise.case(cluster, 0).search()
    assert len(found) == len(exercise.CHOICES) == 2**exercise.LAYERS
    for (given, free), best in ALL.items():
        if given == cluster:
            fits = {choice: taken for choice, (peak, taken) in found.items() if peak <= free}
            assert min(fits, key=fits.__getitem__) == exercise.choice_of(best)


def test_wherever_states_lie_the_update_is_the_same_and_eight_bytes_of_each_parameter_are_there():
    ((cluster, free),) = exercise.ROOM
    inner, samples, *_ = cluster
    some = [exercise.choice_of(moved) for moved in ("00000", "00100", "11111")]
    cluster_options = exercise.case(cluster, free).cluster
    run = launch(
        lambda: [exercise.trained(choice, inner, samples) for choice in some],
        2, backend="ring", clock="virtual", device="cpu", **cluster_options,
    )  # fmt: skip
    (none, _, right), *others = run[0]
    for choice, (peak, _, weights) in zip(some[1:], others, strict=True):
        compare(dict(enumerate(weights)), dict(enumerate(right)), what="parameter")
        moved = sum(
            2 * exercise.WIDTH * width for width, there in zip(inner, choice, strict=True) if there
        )
        # AdamW counts a tensor's steps besides, in 4 bytes.
        assert none - peak == pytest.approx(8 * moved, abs=4 * len(inner))
