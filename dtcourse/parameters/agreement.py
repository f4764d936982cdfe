"""Ranks that must all take the same way: each says what it found, and all go by the same answer.

A rank that raises alone, or takes another branch, leaves the others in a collective that it never calls. So what one
rank alone can know (a damaged file, no memory left, a parameter without a gradient) is asked of all before anybody acts
on it. Each of these is one small collective, which every rank of the group must call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dtcourse.collectives.decisions import said_by_all
from dtcourse.parameters.replicas import Group

T = TypeVar("T")


def raise_on_all_ranks(attempt: Callable[[], T], group: Group = None) -> T:
    """Runs `attempt` on every rank and returns its result; if it raises on any rank, raises on all of them."""
    error, result = None, None
    try:
        result = attempt()
    except Exception as caught:
        error = caught
    mine = None if error is None else f"{type(error).__name__}: {error}"
    everyone: list[str | None] = said_by_all(mine, group)
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


def all_equal(mine: Sequence[int], group: Group, device: torch.device) -> bool:
    """Whether every rank passed the same numbers. All ranks pass as many; 16 bytes each."""
    both = torch.tensor([*mine, *(-n for n in mine)], dtype=torch.int64, device=device)
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group)
    largest, smallest_negated = both.chunk(2)
    return bool((largest == -smallest_negated).all())


def check_agreed(mine: Mapping[str, Any], group: Group, advice: str) -> None:
    """Raises ValueError on every rank, saying which ranks have what, unless all chose the same.

    mine:   what this rank chose, by name: "period": 4;  advice: the message's end
    """
    everyone = said_by_all({n: repr(v) for n, v in mine.items()}, group)
    for name in dict.fromkeys(name for theirs in everyone for name in theirs):
        chosen: dict[str, list[int]] = {}
        for rank, theirs in enumerate(everyone):
            chosen.setdefault(theirs.get(name, "nothing"), []).append(rank)
        if len(chosen) > 1:
            said = "; ".join(f"{value} on {_ranks(ranks)}" for value, ranks in chosen.items())
            raise ValueError(f"{name} differs between the ranks: {said}. {advice}.")


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
