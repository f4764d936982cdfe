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
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from dtcourse import nested
from dtcourse.checkpoint.coverage import check_covered
from dtcourse.checkpoint.folder import open_whole, read, shapes_below, write
from dtcourse.checkpoint.held import Held
from dtcourse.checkpoint.local_chunks import LocalChunks
from dtcourse.checkpoint.state import check_groups, groups_in, keeps_state, named_groups, paths
from dtcourse.checkpoint.tied import check_copies, check_values, read_names, written_names
from dtcourse.parameters.agreement import raise_on_all_ranks
from dtcourse.parameters.naming import Entry, buffers, names_in
from dtcourse.parameters.owners import ModelOwners
from dtcourse.parameters.placement import local
from dtcourse.parameters.whole import check_names
from dtcourse.torch_private import dtensor_like


def save(
    folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Writes the model, and the optimizer's state, into a folder that all ranks share. Every rank must call it.

    A parameter that nobody has cut is taken to be the same on all ranks: one of them writes it. Of a pipeline, whose
    ranks own different ones, pass `pipeline.module`. Raises ValueError on all ranks, and writes nothing, where copies
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
    state: dict[str, Any] = {"model": {**_parameters(held), **buffers(model)}}
    if optimizer is not None:
        state["optimizer"] = _optimizer_state(held, optimizer)
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
        staged |= raise_on_all_ranks(lambda: _room_for_state(held, optimizer, metadata, others))
        groups = _groups(held, optimizer)
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
        _give_state(held, optimizer, staged, metadata)


# --- what is written -------------------------------------------------------------------------------------------


def _as_stored(entry: Entry, kept: torch.Tensor) -> torch.Tensor:
    """`kept`, shaped as what this rank keeps of a parameter, as the checkpoint is to have it."""
    return LocalChunks.of(entry.placed, kept) if entry.placed.over else kept


def _kept(stored: Any) -> Any:
    return stored.kept if isinstance(stored, LocalChunks) else stored


def _parameters(held: Held) -> dict[str, torch.Tensor]:
    """This rank's part of each parameter; a tied one under each of its names, as a plain model has it."""
    return {
        name: _as_stored(entry, local(entry.parameter))
        for entry, names in written_names(held)
        for name in names
        if entry.shape.numel()
    }


def _optimizer_state(held: Held, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """In the shape of torch.distributed.checkpoint.state_dict: by parameters' names."""
    state: dict[str, Any] = {}
    names = held.state_names()
    elsewhere = held.owners.later() if held.owners else ()
    for entry in held.entries:
        if entry.parameter in elsewhere:
            continue
        slots = optimizer.state.get(entry.parameter, {})
        for slot, value in slots.items():
            if isinstance(value, torch.Tensor) and value.dim() > 0:
                if value.shape != entry.parameter.shape:
                    raise ValueError(
                        f"the optimizer's {slot} of {entry.names[0]} has shape {list(value.shape)}, its shard "
                        f"{list(entry.parameter.shape)}: only states of a number per element, or of one number, are "
                        "kept in parts"
                    )
                if not entry.shape.numel():
                    continue
                value = _as_stored(entry, local(value))
            state.setdefault(names[entry.parameter], {})[slot] = value
    return {"state": state, "param_groups": _groups(held, optimizer)}


def _groups(held: Held, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The optimizer's groups, of all owners' parameters. Where there are owners, a collective.

    Raises ValueError where owners have not as many groups.
    """
    groups = named_groups(optimizer, held.state_names())
    if held.owners is None:
        return groups
    everyones = held.owners.said_by_all([group["params"] for group in groups])
    if len({len(theirs) for theirs in everyones}) > 1:
        raise ValueError(
            f"the owners' optimizers have {[len(theirs) for theirs in everyones]} parameter groups: build them alike"
        )
    for group, params in zip(groups, zip(*everyones, strict=True), strict=True):
        group["params"] = list(dict.fromkeys(name for theirs in params for name in theirs))
    return groups


# --- what is read ----------------------------------------------------------------------------------------------


def _room_for_parameters(held: Held) -> dict[str, Any]:
    """Zeros: where there is padding, nothing is read."""
    return {
        f"model.{name}": _as_stored(entry, torch.zeros_like(local(entry.parameter)))
        for entry in held.entries
        for name in read_names(entry, held.owners)
        if entry.shape.numel()
    }


def _values_read(
    entry: Entry, owners: ModelOwners | None, staged: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """What has come for a parameter, by each of its names."""
    names = read_names(entry, owners)
    return {n: _kept(staged[f"model.{n}"]) for n in names if f"model.{n}" in staged}


def _room_for_state(
    held: Held, optimizer: torch.optim.Optimizer, metadata: Metadata, others: set[str]
) -> dict[str, Any]:
    if not any(paths(metadata, "param_groups")):
        raise ValueError(
            "the checkpoint holds no optimizer: call load without one, or save with it"
        )
    by_name = held.by_name()
    room: dict[str, Any] = {}
    for key, _, _ in paths(metadata, "param_groups"):
        option = metadata.state_dict_metadata[key]
        room[key] = None
        if isinstance(option, TensorStorageMetadata):
            room[key] = torch.empty(option.size, dtype=option.properties.dtype)
    for key, name, slot in paths(metadata, "state"):
        if name not in by_name and name in others:
            continue
        if name not in by_name:
            raise ValueError(
                f"the checkpoint's optimizer has a state for {name}, which this model has not"
            )
        entry, stored = by_name[name], metadata.state_dict_metadata[key]
        if not keeps_state(optimizer, entry.parameter):
            continue
        if not isinstance(stored, TensorStorageMetadata):
            room[key] = None
        elif stored.size == entry.shape and (slot != "step" or stored.size):
            kept = torch.zeros_like(local(entry.parameter), dtype=stored.properties.dtype)
            room[key] = _as_stored(entry, kept)
        else:
            room[key] = torch.empty(stored.size, dtype=stored.properties.dtype)
    return room


def _give_state(
    held: Held, optimizer: torch.optim.Optimizer, staged: Mapping[str, Any], metadata: Metadata
) -> None:
    by_name = held.by_name()
    optimizer.state.clear()
    for key, name, slot in paths(metadata, "state"):
        if key not in staged:  # another rank has it
            continue
        parameter, value = by_name[name].parameter, _kept(staged[key])
        of_an_element = isinstance(value, torch.Tensor) and value.shape == local(parameter).shape
        if of_an_element and value.dim() and isinstance(parameter, DTensor):
            value = dtensor_like(parameter, value)
        optimizer.state[parameter][slot] = value
    for group, stored in zip(optimizer.param_groups, groups_in(staged, metadata), strict=True):
        group.update({k: v for k, v in stored.items() if k != "params"})
    if hasattr(optimizer, "states_changed"):
        optimizer.states_changed()
