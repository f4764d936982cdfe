"""Ranks that must all take the same way: each says what it found, and all go by the same answer.

A rank that raises alone, or takes another branch, leaves the others in a collective that it never calls. So what one rank
alone can know (a damaged file, no memory left, a parameter without a gradient) is asked of all before anybody acts on it.
Each of these is one small collective, which every rank of the group must call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist

from dtcourse.parameters.replicas import Group

T = TypeVar("T")


def raise_on_all_ranks(attempt: Callable[[], T], group: Group = None) -> T:
    """Runs `attempt` on every rank and returns its result; if it raises on any rank, raises on all of them."""
    error, result = None, None
    try:
        result = attempt()
    except Exception as caught:
        error = caught
    everyone: list[str | None] = [None] * dist.get_world_size(group)
    mine = None if error is None else f"{type(error).__name__}: {error}"
    dist.all_gather_object(everyone, mine, group=group)
    if error is not None:
        raise error
    for rank, theirs in enumerate(everyone):
        if theirs is not None:
            raise ValueError(f"rank {rank} could not go on, so no rank does: {theirs}")
    return result  # type: ignore[return-value]


def smallest(mine: int, group: Group, device: torch.device) -> int:
    """The smallest of all ranks' numbers."""
    number = torch.tensor(mine, dtype=torch.int64, device=device)
    dist.all_reduce(number, op=dist.ReduceOp.MIN, group=group)
    return int(number.item())


def on_any_rank(mine: Sequence[bool], group: Group, device: torch.device) -> list[bool]:
    """Which of several things are so on at least one rank. All ranks pass the same number of them."""
    flags = torch.tensor(mine, dtype=torch.int32, device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=group)
    return [bool(flag) for flag in flags.tolist()]
