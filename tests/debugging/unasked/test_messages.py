"""What is said of tensors that are sent around whole, where there is nobody, or one other, to send to."""

from __future__ import annotations

import pytest
import torch

from dtcourse.debugging.unasked.messages import Sent, more_than_needed


@pytest.mark.parametrize("ranks", [1, 2])
def test_two_ranks_send_each_other_the_whole_and_one_sends_to_itself(ranks):
    mine = [torch.full((8,), rank + 1.0) for rank in range(ranks)]
    seen = [([Sent((rank + 1) % ranks, "a.py:1", x)], []) for rank, x in enumerate(mine)]
    assert more_than_needed(seen, [sum(mine)] * ranks) is None


def test_three_are_told():
    mine = [torch.full((8,), rank + 1.0) for rank in range(3)]
    seen = []
    for rank in range(3):
        passed_on = [Sent((rank + 1) % 3, "a.py:1", mine[(rank - back) % 3]) for back in range(2)]
        seen.append((passed_on, []))
    sentence = more_than_needed(seen, [sum(mine)] * 3)
    assert sentence is not None and "Rank 0 sends a whole tensor of 8 elements 2 times" in sentence
