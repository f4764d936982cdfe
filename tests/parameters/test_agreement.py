"""All ranks go by the same answer."""

from __future__ import annotations

import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.parameters.agreement import on_any_rank, raise_on_all_ranks, smallest


def test_what_one_rank_raises_all_raise_and_go_on():
    def step():
        def attempt():
            if dist.get_rank() == 1:
                raise KeyError("mine")
            return "fine"

        try:
            raise_on_all_ranks(attempt)
        except (KeyError, ValueError) as error:
            first = f"{type(error).__name__}: {error}"
        return first, raise_on_all_ranks(dist.get_rank)

    assert list(launch(step, 3)) == [
        ("ValueError: rank 1 could not go on, so no rank does: KeyError: 'mine'", 0),
        ("KeyError: 'mine'", 1),
        ("ValueError: rank 1 could not go on, so no rank does: KeyError: 'mine'", 2),
    ]


def test_only_the_groups_own_ranks_are_asked():
    def step():
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        rank = dist.get_rank()
        group, here = pairs[rank // 2], torch.device("cpu")
        raised = ""
        try:
            raise_on_all_ranks(lambda: 1 / (rank - 3), group)
        except (ValueError, ZeroDivisionError) as error:
            raised = str(error)
        flags = on_any_rank([rank == 0, rank == 3, False], group, here)
        return smallest(10 - rank, group, here), flags, bool(raised)

    low, high = (9, [True, False, False], False), (7, [False, True, False], True)
    assert list(launch(step, 4)) == [low, low, high, high]
