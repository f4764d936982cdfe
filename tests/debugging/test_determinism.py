"""What gives the same bits here and what does not, and the settings for it."""

from __future__ import annotations

import random

import torch

from dtcourse import launch
from dtcourse.debugging import determinism, deterministic


def test_one_process_says_what_it_has_tried():
    found = determinism()
    assert {"a sum, again", "a matrix product, again", "random numbers, the same seed"} <= {
        *found.same
    }
    assert "a sum, its numbers reversed" in found.different
    assert "collectives: there is one process" in found.untried
    assert "a sum, its numbers reversed" in str(found) and "differs by" in str(found)


def test_an_all_reduce_in_another_order_has_other_bits():
    for found in launch(determinism, 3, backend="ring"):
        assert "an all_reduce, again" in found.same
        assert "the result of an all_reduce, on all ranks" in found.same
        assert "an all_reduce, the same numbers on other ranks" in found.different
        assert "an all_reduce in 3 messages, not in one" in found.different, (
            "blocks begin elsewhere"
        )
        assert all(one.off < 1e-5 for one in found.tried), "each is as right"


def test_settings_are_there_and_gone_after_the_block():
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    drawn = []
    for _ in range(2):
        with deterministic(7):
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
            drawn.append((torch.rand(1).item(), random.random()))
    assert drawn[0] == drawn[1]
    assert (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark) == before
