"""Where each parameter's pieces are: said once, by whoever cuts it, in data that can be printed.

    print(placement_of(model.blocks[0].mlp.up.weight))
    (64, 16): Shard(dim=0) over ranks 2, 3 (tensor parallelism); Run(start=512, each=2304) over ranks 0, 2 (full ...)

A technique leaves each rank of an axis, a process group, one piece of what it was given. What it was given may be a
piece itself, so the cuts of a parameter are a list, in the order in which they were made: the innermost first. The
list rides on the parameter (`place`), since techniques do not know each other: the outer one appends to it. Whoever
needs the whole (states, gradients, norms, checkpoints: whole.py, clipping.py, dtcourse/checkpoint) undoes the cuts from
the last one back.

A gradient lies as its parameter does, but where ZeRO leaves it on its owner alone: whoever does so is asked then
(`place_gradients`), since it lasts no longer than the one who does it.

What kinds of cuts there are says cuts.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.parameters.cuts import (
    FULL,
    OTHER,
    Cut,
    Elsewhere,
    Group,
    Owners,
    Replicated,
    Run,
    Sliced,
)
from dtcourse.parameters.deep_copies import Said


@dataclass(frozen=True)
class Placement(Said):
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


class Shares(Protocol):
    """What gives whole tensors to owners: ZeRO, gradients or states of the optimizer."""

    def owners(self, parameter: Tensor) -> Owners | None:
        """Which rank has the parameter's; None where it has none."""


class _Asked:
    """Who leaves a parameter's gradient on its owner, for as long as that one lives; pickled without it."""

    def __init__(self, by: Shares | None) -> None:
        self.by = weakref.ref(by) if by is not None else lambda: None

    def __reduce__(self) -> Any:
        return _Asked, (None,)


def place_gradients(parameters: Iterable[Tensor], by: Shares) -> None:
    """Notes that gradients are on owners alone from now on: `by` says on which.

    They may come to be the same on all ranks again: the owner's is right then too.
    """
    asked = _Asked(by)
    for parameter in parameters:
        parameter.gradient_owners = asked  # type: ignore[attr-defined]


def gradient_placement_of(parameter: Tensor) -> Placement:
    """Where the pieces of a parameter's gradient are, once it is averaged."""
    placed, asked = placement_of(parameter), getattr(parameter, "gradient_owners", None)
    by = asked.by() if asked is not None else None
    owners = by.owners(parameter) if by is not None else None
    return placed if owners is None else placed.and_then(owners)


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
    if isinstance(cut, Owners):
        return f"whole on rank {dist.get_process_group_ranks(cut.group)[cut.rank]} of {ranks}"
    partial = ", its gradient Partial()" if getattr(cut, "partial_gradient", False) else ""
    return f"{cut.placement!r} over ranks {ranks}{partial}"
