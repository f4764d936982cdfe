"""Do the ranks of a group have the same model? Asked before anything is sent that takes it for granted.

    a parameter that is               must be the same on all ranks of the group
    the same on the group's ranks     names, shape, dtype, trained or frozen, and which piece of the whole it is
    cut over them                     the whole's names and shape, dtype, trained or frozen, and how it is cut

What is which say the placements (placement.py). Pieces of equal shapes may be of different wholes: of a vocabulary of
31 and of one of 32, each of two ranks keeps 16 rows. Values are not asked for: who starts replicas sends them one
rank's, and whether they are still equal later says data_parallel.check_replicas.

One message per rank, of some tens of bytes a parameter; every rank of the group gets all, so all raise or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.collectives.decisions import said_by_all
from dtcourse.parameters.cuts import Group, Run, Sliced
from dtcourse.parameters.placement import local, placement_of
from dtcourse.parameters.slices import require_same

Form = tuple[Any, ...]


def named_tensors(model: nn.Module, buffers: bool = True) -> list[tuple[str, torch.Tensor]]:
    """The model's parameters, and its buffers, by name: in the same order on every rank."""
    return [*model.named_parameters(), *(model.named_buffers() if buffers else ())]


def check_same_model(
    model: nn.Module,
    group: Group = None,
    buffers: bool = True,
    who: str = "one model on all ranks",
) -> None:
    """Raises ValueError on every rank unless all have the same parameters and buffers, and none is cut over the group.

    who: asks: a part of the message where one is cut
    """
    named = named_tensors(model, buffers)
    check_same(named, group, "built different models", "only the data differs", copies=who)


def check_same(
    named: Sequence[tuple[str, torch.Tensor]],
    group: Group,
    what: str,
    besides: str = "",
    copies: str = "",
) -> None:
    """Raises ValueError on every rank, naming the first tensor that differs, two ranks and what each has, unless all
    ranks of the group have the same.

    what:   what the ranks have done where they have not ("built different models");  besides: the advice's end
    copies: who will make the tensors the same on all ranks, so that none may be cut over them; "" where they may be
    """
    mine = _refused(named, group, copies) or [_form(name, tensor, group) for name, tensor in named]
    everyone = said_by_all(mine, group)
    ranks = dist.get_process_group_ranks(group)
    if isinstance(mine, str):
        raise ValueError(mine)
    for rank, theirs in zip(ranks, everyone, strict=True):
        if isinstance(theirs, str):
            raise ValueError(f"rank {rank} could not go on, so no rank does: {theirs}")
    for rank, theirs in zip(ranks, everyone, strict=True):
        if theirs != everyone[0]:
            a, b = _first_difference(everyone[0], theirs)
            raise ValueError(
                f"the ranks {what}: rank {ranks[0]} has {a}, rank {rank} has {b}. Build the same model on every rank"
                f"{'; ' + besides if besides else ''}."
            )


def is_cut_over(tensor: torch.Tensor, group: Group) -> bool:
    """Whether ranks of the group hold different pieces of it."""
    return any(cut.differs and _together(cut, group) for cut in placement_of(tensor).cuts)


def _form(name: str, tensor: torch.Tensor, group: Group) -> Form:
    """What is to be the same of a tensor: what the whole is; and where it is cut, how, and the shape that is here."""
    placed = placement_of(tensor)
    whole = name, tuple(placed.shape), str(tensor.dtype), tensor.requires_grad
    if not placed.over:
        return whole
    here = None if is_cut_over(tensor, group) else tuple(local(tensor).shape)
    cuts = tuple(_words(cut, _together(cut, group)) for cut in placed.cuts if cut.differs)
    return *whole, here, cuts


def _said(form: Form) -> str:
    name, shape, dtype, trains, *piece = form
    said = f"{name} {list(shape)} {dtype.removeprefix('torch.')}{'' if trains else ' (frozen)'}"
    if not piece:
        return said
    here, cuts = piece
    return ", ".join([said, *([f"of which {list(here)} is here"] if here else []), *cuts])


def _refused(named: Sequence[tuple[str, torch.Tensor]], group: Group, copies: str) -> str:
    """Why this rank cannot be asked; "" where it can."""
    if any(nn.parameter.is_lazy(tensor) for _, tensor in named):
        return "lazy layers have no shapes yet: run the module's forward once on every rank, then go on"
    try:
        if copies:
            require_same(named, group, copies)
    except ValueError as error:
        return str(error)
    return ""


def _together(cut: Any, group: Group) -> bool:
    """Whether the group has several of the ranks over which it was cut."""
    both = {*dist.get_process_group_ranks(cut.group)} & {*dist.get_process_group_ranks(group)}
    return len(both) > 1


def _words(cut: Any, together: bool) -> str:
    """How something was cut; and, where all ranks of the group are to have the same piece of it, which that is."""
    if isinstance(cut, Sliced):
        piece = f"part {cut.part} of {cut.parts}"
        return f"{f'{cut.parts} parts' if together else piece} along dim {cut.dim}"
    if isinstance(cut, Run):
        first, last = cut.mine
        piece = f"elements {first} to {last} of it"
        return f"in a flat from element {cut.start} on, {f'{cut.each} per rank' if together else piece}"
    return f"cut by {cut.technique}"


def _first_difference(first: list[Form], theirs: list[Form]) -> tuple[str, str]:
    """What two ranks have where they do not have the same."""
    for one, other in zip(first, theirs, strict=False):
        if one != other:
            return _said(one), _said(other)
    shorter, longer = sorted((first, theirs), key=len)
    beyond = f", among them {_said(longer[len(shorter)])}" if longer[len(shorter) :] else ""
    return (
        f"{len(first)} tensors{beyond if first is longer else ''}",
        f"{len(theirs)}{beyond if theirs is longer else ''}",
    )
