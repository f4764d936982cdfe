"""How one technique has given out a parameter, or a piece of one, over the ranks of one axis: a cut.

    Sliced       along a dim: torch's Shard(dim). An uneven dim gives ceil(size / parts) to each rank but the last ones,
                 as torch's. `padded`: those have as much memory, and zeros at the end. `copies`: neighbours hold the
                 same slice (key-value heads that are fewer than the ranks)
    Run          of a flat tensor's elements, in which the parameter is one of several
    Replicated   the same on all ranks of the axis: torch's Replicate()
    Owners       whole on one rank of the axis, and nothing on the others: gradients and optimizer states of ZeRO

Where a gradient is complete it lies as its parameter does. What is still to be summed over an axis says so:
Replicated(partial_gradient=True), torch's Partial().
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.parameters.deep_copies import Said
from dtcourse.torch_private import all_gather_single

TENSOR, EXPERT, FULL = "tensor parallelism", "expert parallelism", "full sharding"
ZERO, OTHER = "ZeRO", "a DTensor"

Group = dist.ProcessGroup | None


@dataclass(frozen=True)
class Sliced(Said):
    """Cut along a dim.

    dim:    the one that is cut;  size: what was cut has so much of it
    group:  the ranks that share it;  copies: neighbouring ranks that hold the same slice, a divisor of their number
    padded: all slices have one shape, with zeros at the end of the last ones
    """

    dim: int
    size: int
    group: Group = None
    copies: int = 1
    padded: bool = True
    technique: str = TENSOR

    @property
    def parts(self) -> int:
        """How many different slices there are."""
        return dist.get_world_size(self.group) // self.copies

    @property
    def part(self) -> int:
        """The number of the part that this rank holds."""
        return dist.get_rank(self.group) // self.copies

    @property
    def length(self) -> int:
        """Of each slice along `dim`, padding included."""
        return -(-self.size // self.parts)

    @property
    def start(self) -> int:
        """Where this rank's slice begins."""
        return self.part * self.length

    @property
    def used(self) -> int:
        """How much of this rank's slice is no padding; 0 where nothing is left for it."""
        return max(0, min(self.length, self.size - self.start))

    @property
    def differs(self) -> bool:
        """Whether ranks of the group hold different pieces."""
        return self.parts > 1

    @property
    def counts(self) -> bool:
        """Whether a sum over the group takes this rank's piece: of copies, the first one's."""
        return not self.differs or dist.get_rank(self.group) % self.copies == 0

    @property
    def placement(self) -> Any:
        """In torch's words; of copies, in ours."""
        from torch.distributed.tensor import (
            Shard,  # takes a while, and is only asked for by who has it already
        )

        return Shard(self.dim) if self.copies == 1 else Copies(Shard(self.dim), self.copies)

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's slice of the whole, in memory of its own."""
        shape = list(whole.shape)
        shape[self.dim] = self.length if self.padded else self.used
        mine = whole.new_zeros(shape)
        if self.used:
            own = whole.narrow(self.dim, self.start, self.used)
            mine.narrow(self.dim, 0, self.used).copy_(own)
        return mine

    def join(self, mine: Tensor) -> Tensor:
        """The whole, from all ranks' slices, on every rank. A collective: all ranks of the group call it."""
        if mine.shape[self.dim] < self.length:
            missing = list(mine.shape)
            missing[self.dim] = self.length - mine.shape[self.dim]
            mine = torch.cat([mine, mine.new_zeros(missing)], dim=self.dim)
        ranks = dist.get_world_size(self.group)
        slices = mine.new_empty((ranks, *mine.shape))
        all_gather_single(slices.flatten(0, 1), mine.contiguous(), group=self.group)
        return torch.cat([*slices[:: self.copies]], dim=self.dim).narrow(self.dim, 0, self.size)


@dataclass(frozen=True)
class Copies:
    """What torch has no word for: `times` neighbouring ranks hold the same slice."""

    placement: Any
    times: int


@dataclass(frozen=True)
class Run(Said):
    """A run of the elements of a flat tensor, which has an equal part on each rank.

    start: the element of the flat at which the parameter begins;  each: elements of the flat per rank
    shape: of the parameter, or of the piece of it, that lies in the flat
    flat:  a number that the parameters of one flat have in common
    """

    start: int
    each: int
    shape: torch.Size
    group: Group = None
    flat: int = 0
    technique: str = FULL
    differs: bool = field(default=True, init=False)
    counts: bool = field(default=True, init=False)

    def of_rank(self, rank: int) -> tuple[int, int]:
        """The elements of the parameter that a rank keeps: (from, to), which are equal where it keeps none."""
        numel = self.shape.numel()
        first, last = (min(max(r * self.each - self.start, 0), numel) for r in (rank, rank + 1))
        return first, last

    @property
    def mine(self) -> tuple[int, int]:
        """Those of this rank."""
        return self.of_rank(dist.get_rank(self.group))

    @property
    def placement(self) -> Any:
        """Itself: torch has no word for it."""
        return self

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's elements, shape (n,): a view."""
        first, last = self.mine
        return whole.reshape(-1)[first:last]


@dataclass(frozen=True)
class Replicated(Said):
    """The same on all ranks of the group.

    partial_gradient: its gradient is not, until somebody adds it up over the group
    """

    group: Group = None
    technique: str = TENSOR
    partial_gradient: bool = False
    differs: bool = field(default=False, init=False)
    counts: bool = field(default=True, init=False)

    @property
    def placement(self) -> Any:
        """In torch's words."""
        from torch.distributed.tensor import Replicate

        return Replicate()

    def cut(self, whole: Tensor) -> Tensor:
        """All of it."""
        return whole

    def join(self, mine: Tensor) -> Tensor:
        """It is whole."""
        return mine


@dataclass(frozen=True)
class Owners(Said):
    """Whole on one rank of the group, and nothing on the others.

    rank: of the group: the one that has it
    """

    rank: int
    group: Group = None
    technique: str = ZERO

    @property
    def differs(self) -> bool:
        """Whether there are others."""
        return dist.get_world_size(self.group) > 1

    @property
    def counts(self) -> bool:
        """Whether it is here."""
        return dist.get_rank(self.group) == self.rank

    def cut(self, whole: Tensor) -> Tensor:
        """All of it on its owner; elsewhere no element, shape (0,)."""
        return whole if self.counts else whole.new_empty(0)

    def join(self, mine: Tensor) -> Tensor:
        """The owner's, on every rank. A collective. Of the others' `mine` only shape, dtype and device matter."""
        whole = mine.contiguous() if self.counts else mine.new_empty(mine.shape)
        dist.broadcast(whole, group=self.group, group_src=self.rank)
        return whole


@dataclass(frozen=True)
class Elsewhere(Said):
    """A cut in a process that had other groups: of a parameter that was pickled."""

    technique: str
    group: Group = None
    differs: bool = True
    counts: bool = True


Cut = Sliced | Run | Replicated | Owners
