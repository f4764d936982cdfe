"""A sharded model and its optimizer on disk, each rank writing what it keeps, through torch.distributed.checkpoint.

    save("runs/10000", model, optimizer)         # on every rank
    load("runs/10000", model, optimizer)         # on any number of ranks, with other units, sharded by another layout

The folder is in PyTorch's own format, with parameters by name and in their own shapes, and the optimizer's state as
torch.distributed.checkpoint.state_dict has it. So PyTorch's fully_shard, and a plain model, load from it and write it:
`dcp.load({"model": plain.state_dict()}, checkpoint_id=folder)`.

Loading is all or nothing. Files are held against their checksums, names and shapes against the model's; everything is read
beside what is there, which takes the memory of one more shard; and only when all of it has come on all ranks does it take effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from dtcourse.sharding import checksums
from dtcourse.sharding.pieces import Piece
from dtcourse.sharding.state_dict import Entry, agree, buffers, check_names, entries


def save(
    folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Writes the model, and the optimizer's state, into a folder that all ranks share. Every rank must call it."""
    folder = Path(folder)
    state: dict[str, Any] = {"model": {**_parameters(model), **buffers(model)}}
    if optimizer is not None:
        state["optimizer"] = _optimizer_state(model, optimizer)
    dcp.save(state, checkpoint_id=str(folder))
    checksums.write(folder)


def load(
    folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Reads what `save` wrote, or PyTorch, on any number of ranks. Every rank must call it.

    Raises ValueError on all ranks, and leaves model and optimizer as they were, for a folder without a checkpoint, a
    damaged file, another model's names or shapes, and an optimizer with other parameter groups.
    """
    folder = Path(folder)
    metadata = agree(lambda: _read_metadata(folder))
    agree(lambda: checksums.check(folder))
    agree(lambda: _check_model(model, metadata))
    staged: dict[str, Any] = {}
    for entry in entries(model):
        for name in entry.names:
            if entry.place.shape.numel():
                staged[f"model.{name}"] = _piece(entry, torch.empty_like(entry.parameter.data))
    for name, buffer in buffers(model).items():
        staged[f"model.{name}"] = torch.empty_like(buffer)
    if optimizer is not None:
        staged.update(agree(lambda: _room_for_state(model, optimizer, metadata)))

    def read() -> None:
        try:
            dcp.load(staged, checkpoint_id=str(folder))
        except CheckpointException as failure:  # raised on all ranks, with what each of them met
            rank, (error, _) = next(iter(failure.failures.items()))
            raise ValueError(
                f"{folder} could not be read, and nothing was loaded: {type(error).__name__} on rank {rank}: {error}"
            ) from None
        for entry in entries(model):
            same = [staged[f"model.{n}"].run for n in entry.names if f"model.{n}" in staged]
            if any(not torch.equal(run, same[0]) for run in same[1:]):
                raise ValueError(
                    f"{' and '.join(entry.names)} are one parameter here, and differ in {folder}"
                )
        if optimizer is not None:
            _check_groups(model, optimizer, _groups_in(staged, metadata))

    agree(read)
    _take_effect(model, optimizer, staged, metadata)


# --- what is written -------------------------------------------------------------------------------------------


def _piece(entry: Entry, run: torch.Tensor) -> Piece:
    start = max(entry.flat.rank * entry.flat.part - entry.place.start, 0)
    return Piece.of(entry.place.shape, start, run)


def _parameters(model: nn.Module) -> dict[str, Piece]:
    """This rank's piece of each parameter; a tied one under each of its names, as a plain model has it."""
    return {
        name: _piece(entry, entry.parameter.data)
        for entry in entries(model)
        for name in entry.names
        if entry.place.shape.numel()
    }


def _optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """In the shape of torch.distributed.checkpoint.state_dict: by parameters' names."""
    state: dict[str, Any] = {}
    for entry in entries(model):
        slots = optimizer.state.get(entry.parameter, {})
        for slot, value in slots.items():
            if isinstance(value, torch.Tensor) and value.dim() > 0:
                if value.shape != entry.parameter.shape:
                    raise ValueError(
                        f"the optimizer's {slot} of {entry.names[0]} has shape {list(value.shape)}, its shard "
                        f"{list(entry.parameter.shape)}: only states of a number an element, or of one number, are kept in parts"
                    )
                if not entry.place.shape.numel():
                    continue
                value = _piece(entry, value)
            state.setdefault(entry.names[0], {})[slot] = value
    return {"state": state, "param_groups": _groups(model, optimizer)}


def _groups(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    names = {entry.parameter: entry.names[0] for entry in entries(model)}
    return [
        {
            **{k: v for k, v in group.items() if k != "params"},
            "params": [names[p] for p in group["params"]],
        }
        for group in optimizer.param_groups
    ]


# --- what is read ----------------------------------------------------------------------------------------------


def _read_metadata(folder: Path) -> Metadata:
    try:
        return dcp.FileSystemReader(str(folder)).read_metadata()
    except Exception as error:
        raise ValueError(f"{folder} holds no checkpoint that can be read: {error}") from error


def _check_model(model: nn.Module, metadata: Metadata) -> None:
    stored = {
        key.removeprefix("model."): tuple(getattr(value, "size", ()))
        for key, value in metadata.state_dict_metadata.items()
        if key.startswith("model.")
    }
    check_names(model, stored, where="the checkpoint", ignore_empty=True)


def _paths(metadata: Metadata, part: str) -> Iterator[tuple[str, Any, str]]:
    """(key, parameter's name, slot) of all the optimizer's states, or (key, number, option) of its param_groups."""
    for key, path in (metadata.planner_data or {}).items():
        if tuple(path[:2]) == ("optimizer", part) and len(path) == 4:
            yield key, path[2], path[3]


def _room_for_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, metadata: Metadata
) -> dict[str, Any]:
    if not any(_paths(metadata, "param_groups")):
        raise ValueError(
            "the checkpoint holds no optimizer: call load without one, or save with it"
        )
    by_name = {name: entry for entry in entries(model) for name in entry.names}
    room: dict[str, Any] = {}
    for key, _, _ in _paths(metadata, "param_groups"):
        option = metadata.state_dict_metadata[key]
        room[key] = None
        if isinstance(option, TensorStorageMetadata):
            room[key] = torch.empty(option.size, dtype=option.properties.dtype)
    for key, name, slot in _paths(metadata, "state"):
        if name not in by_name:
            raise ValueError(
                f"the checkpoint's optimizer has a state for {name}, which this model has not"
            )
        entry, stored = by_name[name], metadata.state_dict_metadata[key]
        if not isinstance(stored, TensorStorageMetadata):
            room[key] = None
        elif stored.size == entry.place.shape and (slot != "step" or stored.size):
            run = torch.empty_like(entry.parameter.data, dtype=stored.properties.dtype)
            room[key] = _piece(entry, run)
        else:
            room[key] = torch.empty(stored.size, dtype=stored.properties.dtype)
    return room


def _groups_in(staged: dict[str, Any], metadata: Metadata) -> list[dict[str, Any]]:
    groups: dict[int, dict[str, Any]] = {}
    for key, number, option in _paths(metadata, "param_groups"):
        groups.setdefault(number, {})[option] = staged[key]
    return [groups[number] for number in sorted(groups)]


def _check_groups(
    model: nn.Module, optimizer: torch.optim.Optimizer, stored: list[dict[str, Any]]
) -> None:
    mine = _groups(model, optimizer)
    if [sorted(g["params"]) for g in mine] != [sorted(g["params"]) for g in stored]:
        raise ValueError(
            f"the checkpoint's optimizer has parameter groups of {[len(g['params']) for g in stored]}, this one of "
            f"{[len(g['params']) for g in mine]} or of other parameters: build it as it was"
        )


def _take_effect(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    staged: dict[str, Any],
    metadata: Metadata,
) -> None:
    by_name = {name: entry for entry in entries(model) for name in entry.names}
    with torch.no_grad():
        for name, entry in by_name.items():
            if f"model.{name}" in staged:
                entry.parameter.data.copy_(staged[f"model.{name}"].run)
        for name, buffer in buffers(model).items():
            buffer.copy_(staged[f"model.{name}"])
    if optimizer is None:
        return
    optimizer.state.clear()
    for key, name, slot in _paths(metadata, "state"):
        parameter, value = by_name[name].parameter, staged[key]
        optimizer.state[parameter][slot] = value.run if isinstance(value, Piece) else value
    for group, stored in zip(optimizer.param_groups, _groups_in(staged, metadata), strict=True):
        group.update({k: v for k, v in stored.items() if k != "params"})
