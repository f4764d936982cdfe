"""Where each parameter's pieces are: said once, by whoever cuts it, in data that can be printed.

    print(placement_of(model.blocks[0].mlp.up.weight))
    (64, 16): Shard(dim=0) over ranks 2, 3 (tensor parallelism); Run(start=512, each=2304) over ranks 0, 2 (full ...)

A technique leaves each rank of an axis, a process group, one piece of what it was given. What it was given may be a
piece itself, so the cuts of a parameter are a list, in the order in which they were made: the innermost first. The
list rides on the parameter (`place`), since techniques do not know each other: the outer one appends to it. Whoever
needs the whole (states, gradients, norms, checkpoints: whole.py, clipping.py, dtcourse/checkpoint) undoes the cuts from
the last one back.

    Sliced       along a dim: torch's Shard(dim). An uneven dim gives ceil(size / parts) to each rank but the last ones,
                 as torch's. `padded`: those have as much memory, and zeros at the end. `copies`: neighbours hold the
                 same slice (key-value heads that are fewer than the ranks)
    Run          of a flat tensor's elements, in which the parameter is one of several
    Replicated   the same on all ranks of the axis: torch's Replicate()

Where a gradient is complete it lies as its parameter does. What is still to be summed over an axis says so:
Replicated(partial_gradient=True), torch's Partial().
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.torch_private import all_gather_single

TENSOR, EXPERT, FULL = "tensor parallelism", "expert parallelism", "full sharding"
OTHER = "a DTensor"

Group = dist.ProcessGroup | None


@dataclass(frozen=True)
class Sliced:
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
class Run:
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
class Replicated:
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
class Elsewhere:
    """A cut in a process that had other groups: of a parameter that was pickled."""

    technique: str
    group: Group = None
    differs: bool = True
    counts: bool = True


Cut = Sliced | Run | Replicated


@dataclass(frozen=True)
class Placement:
    """Where a parameter's pieces are.

    shape: of the whole parameter;  cuts: what was done to it, the innermost first
    """

    shape: torch.Size
    cuts: tuple[Any, ...] = ()

    def and_then(self, *cuts: Any) -> Placement:
        """The placement of a piece of this rank's piece."""
        return Placement(self.shape, (*self.cuts, *cuts))

    def without(self, technique: str) -> Placement:
        """As it was before a technique's cuts: its own, which come last."""
        return Placement(self.shape, tuple(c for c in self.cuts if c.technique != technique))

    def beside(self, group: Group) -> Placement:
        """What is said of the other axes."""
        return Placement(self.shape, tuple(c for c in self.cuts if c.group != group))

    @property
    def over(self) -> tuple[Any, ...]:
        """The groups whose ranks hold different pieces."""
        return tuple(cut.group for cut in self.cuts if cut.differs)

    @property
    def counts(self) -> bool:
        """Whether a sum over those groups takes this rank's piece."""
        return all(cut.counts for cut in self.cuts)

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's piece of something in the whole parameter's shape."""
        for cut in self.cuts:
            whole = cut.cut(whole)
        return whole

    def __str__(self) -> str:
        said = [f"{_words(cut)} ({cut.technique})" for cut in self.cuts]
        return f"{tuple(self.shape)}: {'; '.join(said) or 'whole'}"

    def __reduce__(self) -> Any:
        """Pickled without the groups, which are this process's."""
        return Placement, (self.shape, tuple(Elsewhere(cut.technique) for cut in self.cuts))


def place(parameter: Tensor, before: Placement, *cuts: Cut) -> None:
    """Notes where a parameter's pieces are: as `before`, and then cut further.

    Over an axis of one rank it is what it was. Full sharding is noted even there, since it has hooks of its own.
    """
    kept = [c for c in cuts if c.technique == FULL or dist.get_world_size(c.group) > 1]
    if kept or before.cuts:
        parameter.placed = before.and_then(*kept)  # type: ignore[attr-defined]


def placement_of(parameter: Tensor) -> Placement:
    """Where a parameter's pieces are. What nobody has placed is whole; a DTensor of torch's says it itself."""
    placed: Placement | None = getattr(parameter, "placed", None)
    mesh = getattr(parameter, "device_mesh", None)
    if placed is not None:
        return placed
    if mesh is None:
        return Placement(parameter.shape)
    cuts: list[Any] = []
    for axis, placement in enumerate(parameter.placements):  # type: ignore[attr-defined]
        group = mesh.get_group(axis)
        if placement.is_shard():
            size = parameter.shape[placement.dim]
            cuts.append(Sliced(placement.dim, size, group, padded=False, technique=OTHER))
        elif placement.is_replicate():
            cuts.append(Replicated(group, OTHER))
        else:
            cuts.append(Elsewhere(OTHER, group))
    return Placement(parameter.shape, tuple(cuts))


def local(tensor: Tensor) -> Tensor:
    """This rank's piece of a parameter or a gradient, as a plain tensor of the same memory."""
    with torch.no_grad():
        return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


def _words(cut: Any) -> str:
    if isinstance(cut, Elsewhere):
        return "cut in another process"
    ranks = ", ".join(map(str, dist.get_process_group_ranks(cut.group)))
    if isinstance(cut, Run):
        first, last = cut.mine
        return f"Run({first}:{last} of {cut.shape.numel()}) over ranks {ranks}"
    partial = ", its gradient Partial()" if getattr(cut, "partial_gradient", False) else ""
    return f"{cut.placement!r} over ranks {ranks}{partial}"
