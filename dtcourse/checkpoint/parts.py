"""A model and its optimizer on disk, each rank writing what it keeps, through torch.distributed.checkpoint.

    save("runs/10000", model, optimizer)         # on every rank
    load("runs/10000", model, optimizer)         # on any number of ranks, cut by any techniques, or by none

The folder is in PyTorch's own format, with parameters by the whole model's names and in their own shapes, and the
optimizer's state as torch.distributed.checkpoint.state_dict has it. So PyTorch's fully_shard, and a plain model, load
from it and write it: `dcp.load({"model": plain.state_dict()}, checkpoint_id=folder)`.

Loading is all or nothing. Files are held against their checksums, names and shapes against the model's, pieces against
what they are pieces of; everything is read beside what is there, which takes the memory of one more copy of what the
rank keeps; and only when all of it has come on all ranks does it take effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse import nested
from dtcourse.checkpoint.coverage import check_covered
from dtcourse.checkpoint.folder import open_whole, read, shapes_below, write
from dtcourse.checkpoint.held import Held
from dtcourse.checkpoint.local_chunks import LocalChunks, as_stored, kept_in
from dtcourse.checkpoint.state import (
    all_groups,
    check_groups,
    give_state,
    groups_in,
    named_groups,
    optimizer_state,
    room_for_state,
)
from dtcourse.checkpoint.tied import check_copies, check_values, read_names, written_names
from dtcourse.parameters.agreement import raise_on_all_ranks
from dtcourse.parameters.naming import Entry, buffers, names_in
from dtcourse.parameters.owners import ModelOwners
from dtcourse.parameters.placement import local
from dtcourse.parameters.whole import check_names


def save(
    folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Writes the model, and the optimizer's state, into a folder that all ranks share. Every rank must call it.

    A parameter that nobody has cut is taken to be the same on all ranks: one of them writes it. Buffers may differ
    (statistics of batch normalisation): all are the lowest rank's that has them. Of a pipeline, whose ranks own
    different parameters, pass `pipeline.module`. Raises ValueError on all ranks, and writes nothing, where copies
    of a tied parameter on two stages differ.
    """
    write(folder, _state(model, optimizer))


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """What `save` would write, copied to the CPU: folder.write(folder, it) does so later, while training goes on.

    Every rank must call it; raises as `save`. It takes the memory of one more copy of what the rank keeps.
    """
    return nested.map_tensors(_copied, _state(model, optimizer))


def _state(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    held = Held.of(model)
    raise_on_all_ranks(lambda: check_copies(held))
    state: dict[str, Any] = {"model": {**_parameters(held), **_buffers(model)}}
    if optimizer is not None:
        mine = raise_on_all_ranks(lambda: optimizer_state(held, optimizer))
        state["optimizer"] = {**mine, "param_groups": all_groups(held, mine["param_groups"])}
    return state


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, LocalChunks):
        return LocalChunks.of(tensor.placed, _copied(tensor.kept))
    return tensor.detach().to("cpu", copy=True)


def load(
    folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Reads what `save` wrote, or PyTorch, on any number of ranks, however the model was cut. Every rank must call it.

    Raises ValueError on all ranks, and leaves model and optimizer as they were, for a folder without a checkpoint, a
    damaged file, another model's names or shapes, pieces that do not cover a parameter or overlap, and an optimizer
    with other parameter groups.
    """
    metadata = open_whole(folder)
    held = Held.of(model)
    owners = held.owners
    others = owners.names_of_others(names_in(model)) if owners else set()
    stored = {n: s for n, s in shapes_below(metadata, "model.").items() if n not in others}
    raise_on_all_ranks(lambda: check_names(model, stored, "the checkpoint", ignore_empty=True))
    staged = {f"model.{n}": torch.empty_like(buffer) for n, buffer in buffers(model).items()}
    staged |= _room_for_parameters(held)
    if optimizer is not None:
        staged |= raise_on_all_ranks(lambda: room_for_state(held, optimizer, metadata, others))
        groups = all_groups(held, named_groups(optimizer, held.state_names()))
    raise_on_all_ranks(lambda: check_covered(metadata, staged))

    def check() -> None:
        for entry in held.entries:
            check_values(entry, owners, _values_read(entry, owners, staged), folder)
        if optimizer is not None:
            check_groups(groups, groups_in(staged, metadata))

    read(folder, staged, check)
    with torch.no_grad():
        for entry in held.entries:
            for value in _values_read(entry, owners, staged).values():
                local(entry.parameter).copy_(value)
        for name, buffer in buffers(model).items():
            buffer.copy_(staged[f"model.{name}"])
    if optimizer is not None:
        give_state(held, optimizer, staged, metadata)


# --- what is written -------------------------------------------------------------------------------------------


def _parameters(held: Held) -> dict[str, torch.Tensor]:
    """This rank's part of each parameter; a tied one under each of its names, as a plain model has it."""
    return {
        name: as_stored(entry.placed, local(entry.parameter))
        for entry, names in written_names(held)
        for name in names
        if entry.shape.numel()
    }


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """This rank's buffers but for those that an earlier rank has: torch would take each from whom it likes, and mean
    and variance of two ranks fit no batch. A collective, of names.
    """
    mine = buffers(model)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, list(mine))
    earlier = {name for theirs in everyone[: dist.get_rank()] for name in theirs}
    return {name: buffer for name, buffer in mine.items() if name not in earlier}


# --- what is read ----------------------------------------------------------------------------------------------


def _room_for_parameters(held: Held) -> dict[str, Any]:
    """Zeros: where there is padding, nothing is read."""
    return {
        f"model.{name}": as_stored(entry.placed, torch.zeros_like(local(entry.parameter)))
        for entry in held.entries
        for name in read_names(entry, held.owners)
        if entry.shape.numel()
    }


def _values_read(
    entry: Entry, owners: ModelOwners | None, staged: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """What has come for a parameter, by each of its names."""
    names = read_names(entry, owners)
    return {n: kept_in(staged[f"model.{n}"]) for n in names if f"model.{n}" in staged}
