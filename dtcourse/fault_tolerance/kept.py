"""What a rank has in memory of its own state and of its neighbour's: by step, each whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from dtcourse.fault_tolerance.holdings import Holdings


class Copy(NamedTuple):
    """A state as it is sent (packed.py)."""

    header: torch.Tensor
    tensors: torch.Tensor

    @property
    def bytes(self) -> int:
        """Of both."""
        return len(self.header) + len(self.tensors)


class Kept:
    """What a rank has in memory, by step: it outlives the group in which it was sent, and is of the ranks of then."""

    def __init__(self, rank: int, size: int, distance: int) -> None:
        self.rank, self.size, self.distance = rank, size, distance
        self.own: dict[int, Copy] = {}
        self.neighbours: dict[int, Copy] = {}

    def holdings(self) -> Holdings:
        """Which states it has."""
        return Holdings(
            self.rank, self.size, self.distance, tuple(self.own), tuple(self.neighbours)
        )

    def state_of(self, whose: int, step: int) -> Copy | None:
        """A rank's state after a step."""
        if whose == self.rank and step in self.own:
            return self.own[step]
        return self.neighbours.get(step) if whose == self.holdings().neighbour else None

    def bytes(self) -> int:
        """That it takes."""
        return sum(c.bytes for c in (*self.own.values(), *self.neighbours.values()))

    def let_go(self, below: int) -> None:
        """Of the copies of earlier steps."""
        for kept in (self.own, self.neighbours):
            for step in [s for s in kept if s < below]:
                del kept[step]


def room_for(lengths: Sequence[int]) -> Copy:
    """For one that comes."""
    header, tensors = (torch.empty(n, dtype=torch.uint8) for n in lengths)
    return Copy(header, tensors)


def parts_of(copy: Copy) -> list[tuple[int, torch.Tensor]]:
    """What is a message of its own, with its tag: a rank without parameters has no tensors."""
    return [(tag, part) for tag, part in enumerate(copy, start=1) if len(part)]
