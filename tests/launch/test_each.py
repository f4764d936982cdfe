"""An argument of which each rank gets its own alone; and what a rank's function may say on its way."""

import threading

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


def total(own):
    return float(own.sum())


def test_a_launch_that_goes_on_behind_has_copies():
    mine = [torch.ones(3), torch.ones(500_000)]  # sent inline, and as a file
    handle = launch(total, 2, Each(mine), wait=False, init=False)
    for one in mine:
        one.fill_(7.0)
    assert list(handle.result()) == [3.0, 500_000.0]


def test_what_cannot_be_sent_is_named_with_its_rank():
    words = r"what rank 1 alone is given\[1\]\['lock'\] is a lock, which cannot be sent to a rank .*inside the function"
    with pytest.raises(TypeError, match=words):
        launch(step, 2, Each("ab"), "all", Each([None, {"lock": threading.Lock()}]), init=False)
