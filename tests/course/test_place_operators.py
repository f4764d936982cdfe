"""The best placements of exercise 17-2, by running every one; and what is run is one model, wherever its parts are."""

from __future__ import annotations

import pytest
import torch

from dtcourse import launch
from dtcourse.course.checks.lesson_17_layers_and_pipelines import operators
from dtcourse.course.checks.lesson_17_layers_and_pipelines import place_operators as exercise
from dtcourse.verify import compare

OWN = "dtcourse/course/checks/lesson_17_layers_and_pipelines"
ALL = exercise.FREE | exercise.MESSAGES | exercise.DEAR


@pytest.mark.slow
@pytest.mark.stands_on(
    f"{OWN}/operators.py",
    f"{OWN}/place_operators.py",
    "tests/course/test_place_operators.py",
    "dtcourse/emulation",
)
@pytest.mark.parametrize("given", ALL)
def test_the_best_placements_are_those_that_running_all_of_them_finds(given):
    found = exercise.case(*given).search()
    assert len(found) == 2 ** len(given[0])
    least = min(seconds for (seconds,) in found.values())
    assert found[exercise.choice_of(ALL[given])] == (pytest.approx(least, rel=1e-9),)


def gradients(choices: list[tuple[int, ...]]) -> list[dict[int, torch.Tensor]]:
    """On each rank, of each placement: the gradients of its operators' weights, U beside the transpose of D."""
    found = []
    for choice in choices:
        placed = operators.Placed(choice, exercise.TOWERS)
        placed.step()
        found.append(
            {i: torch.cat([up.grad, down.grad.T], 1) for i, (up, down) in placed.weights.items()}
        )
    return found


def test_wherever_operators_are_they_have_the_gradients_of_one_process():
    outputs, weights = [], []
    for i, (_, needs) in enumerate(exercise.TOWERS):
        weights.append(operators.weights_of(exercise.TOWERS, i))
        x = sum((outputs[k] for k in needs), torch.zeros(())) if needs else operators.batch()
        outputs.append(operators.apply(x, weights[i]))
    (outputs[-1].square().sum() / 2).backward()
    right = {i: torch.cat([up.grad, down.grad.T], 1) for i, (up, down) in enumerate(weights)}
    choices = [exercise.choice_of(one) for one in ("0000000", "0101010", "1100101", "0011011")]
    run = launch(gradients, 2, choices, device="cpu", timeout=60)
    for first, second in zip(*run, strict=True):
        compare(first | second, right)
