"""An argument of which each rank gets its own alone; and what a rank's function may say on its way."""

import pytest
import torch

from dtcourse.launch import launch, reporting
from dtcourse.launch.each import Each


def step(own, all_of_us, other):
    with pytest.raises(ValueError, match="nothing of kind 'result'"):
        reporting._channel("result", {"value": "mine", "seconds": 0.0})
    return own, all_of_us, other


def test_a_rank_gets_its_own_and_says_its_result_by_returning_it():
    run = launch(step, 2, Each([torch.ones(2), None]), "all", Each("ab"), init=False)
    assert (run[0][0].tolist(), run[0][1:]) == ([1.0, 1.0], ("all", "a"))
    assert run[1] == (None, "all", "b")


def test_there_is_one_for_each_rank():
    with pytest.raises(ValueError, match="Each of 3 values for 2 ranks"):
        launch(step, 2, Each("abc"), "all", Each("ab"))
    with pytest.raises(ValueError, match="own is an Each: give that by its place"):
        launch(step, 2, own=Each("ab"), all_of_us="all", other="a")
