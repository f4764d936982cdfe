"""An optimizer's state in a checkpoint: by parameters' names, as torch.distributed.checkpoint.state_dict has it.

    {"state": {name: {slot: tensor or piece}}, "param_groups": [{"params": [names], option: value}]}

Names say what is whose, so another order, another number of ranks and another cut of the parameters can load it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from dtcourse import nested
from dtcourse.checkpoint.held import Held
from dtcourse.checkpoint.local_chunks import as_stored, kept_in
from dtcourse.checkpoint.nests import written
from dtcourse.parameters.placement import local
from dtcourse.torch_private import dtensor_like, nests_again

Path = tuple[Any, ...]


def paths(metadata: Metadata, part: str) -> Iterator[tuple[str, Any, Path]]:
    """(key, parameter's name, path in its state) of part "state", or (key, number, path) of "param_groups"."""
    for key, path in (metadata.planner_data or {}).items():
        if tuple(path[:2]) == ("optimizer", part) and len(path) >= 4:
            yield key, path[2], tuple(path[3:])


# --- what is written -------------------------------------------------------------------------------------------


def optimizer_state(held: Held, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What this rank writes. Raises ValueError for what would not come back as it was."""
    state: dict[str, Any] = {}
    names = held.state_names()
    elsewhere = held.owners.later() if held.owners else ()
    for entry in held.entries:
        slots = optimizer.state.get(entry.parameter, {})
        if entry.parameter in elsewhere or not slots:
            continue
        where = f"the optimizer's state of {entry.names[0]}"
        kept = slots if entry.shape.numel() else _of_no_element(slots)
        if kept:
            state[names[entry.parameter]] = written(kept, where, entry)
    groups = named_groups(optimizer, names)
    for number, group in enumerate(groups):
        written(group, f"the options of parameter group {number}", None)
    return {"state": state, "param_groups": groups}


def _of_no_element(slots: Mapping[str, Any]) -> dict[str, Any]:
    """The slots of a parameter without elements that a file can hold."""
    return {n: v for n, v in slots.items() if all(t.numel() for t in nested.tensors(v))}


def named_groups(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]
) -> list[dict[str, Any]]:
    """The optimizer's parameter groups with names for parameters. ValueError for a parameter that has none."""
    strange = [p for group in optimizer.param_groups for p in group["params"] if p not in names]
    if strange:
        raise ValueError(
            f"the optimizer holds {len(strange)} parameters that the model has not, the first of shape "
            f"{list(strange[0].shape)}: pass the module that holds all of them"
        )
    return [
        {
            **{k: v for k, v in group.items() if k != "params"},
            "params": [names[p] for p in group["params"]],
        }
        for group in optimizer.param_groups
    ]


def all_groups(held: Held, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """This rank's `named_groups`, with all owners' parameters. Where there are owners, a collective.

    Raises ValueError where owners have not as many groups.
    """
    if held.owners is None:
        return groups
    everyones = held.owners.said_by_all([group["params"] for group in groups])
    if len({len(theirs) for theirs in everyones}) > 1:
        raise ValueError(
            f"the owners' optimizers have {[len(theirs) for theirs in everyones]} parameter groups: build them alike"
        )
    return [
        {**group, "params": list(dict.fromkeys(name for theirs in params for name in theirs))}
        for group, params in zip(groups, zip(*everyones, strict=True), strict=True)
    ]


# --- what is read ----------------------------------------------------------------------------------------------


def room_for_state(
    held: Held, optimizer: torch.optim.Optimizer, metadata: Metadata, others: set[str]
) -> dict[str, Any]:
    """Where this rank's part of an optimizer's state is to be read into, by the checkpoint's keys.

    others: the names of parameters that other ranks have.  Raises ValueError where the checkpoint is of another model,
    or keeps something of a whole parameter of which this rank has a part.
    """
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
        elif stored.size == entry.shape and (slot != ("step",) or stored.size):
            kept = torch.zeros_like(local(entry.parameter), dtype=stored.properties.dtype)
            room[key] = as_stored(entry.placed, kept)
        elif stored.size and entry.placed.over:
            raise ValueError(
                f"the checkpoint's {'.'.join(map(str, slot))} of {name} is {list(stored.size)}, of the whole parameter "
                f"{list(entry.shape)}, and this rank has a part of it: what that part's would be is unknown. Load it "
                "where the parameter is whole. Nothing was loaded"
            )
        else:
            room[key] = torch.empty(stored.size, dtype=stored.properties.dtype)
    return room


def keeps_state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> bool:
    """Whether the optimizer keeps a parameter's state on this rank: ZeRO does so on the owner alone."""
    owners = optimizer.owners(parameter) if hasattr(optimizer, "owners") else None
    return owners is None or bool(owners.counts)


def groups_in(staged: Mapping[str, Any], metadata: Metadata) -> list[dict[str, Any]]:
    """The parameter groups among what was read."""
    groups: list[dict[str, Any]] = _again(staged, metadata, "param_groups")
    return groups


def check_groups(mine: list[dict[str, Any]], stored: list[dict[str, Any]]) -> None:
    """Raises ValueError unless both have the same parameters in the same groups."""
    if [sorted(g["params"]) for g in mine] != [sorted(g["params"]) for g in stored]:
        raise ValueError(
            f"the checkpoint's optimizer has parameter groups of {[len(g['params']) for g in stored]}, this one of "
            f"{[len(g['params']) for g in mine]} or of other parameters: build it as it was"
        )


def give_state(
    held: Held, optimizer: torch.optim.Optimizer, staged: Mapping[str, Any], metadata: Metadata
) -> None:
    """The optimizer takes what was read."""
    by_name = held.by_name()
    optimizer.state.clear()
    for name, slots in (_again(staged, metadata, "state") or {}).items():
        parameter = by_name[name].parameter
        optimizer.state[parameter] = nested.map_tensors(partial(as_parameter, parameter), slots)
    for group, stored in zip(optimizer.param_groups, groups_in(staged, metadata), strict=True):
        group.update({k: v for k, v in stored.items() if k != "params"})
    if hasattr(optimizer, "states_changed"):
        optimizer.states_changed()


def as_parameter(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A state in the parameter's own form: a DTensor's are DTensors, where they have a number per element."""
    by_element = value.dim() > 0 and value.shape == local(parameter).shape
    return (
        dtensor_like(parameter, value) if by_element and isinstance(parameter, DTensor) else value
    )


def _again(staged: Mapping[str, Any], metadata: Metadata, part: str) -> Any:
    """A part of the optimizer's state, as it was saved; without what another rank has."""
    found = [key for key, _, _ in paths(metadata, part) if key in staged]
    values = {key: kept_in(staged[key]) for key in found}
    return nests_again(values, metadata.planner_data).get("optimizer", {}).get(part)
