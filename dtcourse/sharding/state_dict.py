"""The state of a sharded model as whole tensors by name, the same as the plain model's, and from it.

    whole = full_state_dict(model)               # on every rank, or on the first only; loads into the plain model
    load_full_state_dict(model, whole)           # from a plain model, from another number of ranks: all the same

Whole tensors are gathered one flat at a time. Loading checks all names, shapes and dtypes before it changes anything, on
all ranks together: if one rank refuses, all do. For models that no single rank can hold, see checkpoint.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.collectives.compat import all_gather_single
from dtcourse.sharding.flat_parameter import FlatParameter
from dtcourse.sharding.sharded_parameter import Place, ShardedParameter
from dtcourse.sharding.unit import Unit

State = dict[str, torch.Tensor]


class Entry(NamedTuple):
    """One parameter of a sharded model."""

    names: list[str]  # by which the model knows it: several where tied
    unit: Unit
    flat: FlatParameter
    place: Place
    parameter: ShardedParameter


def entries(model: nn.Module) -> Iterator[Entry]:
    """All sharded parameters, in the order of units and flats."""
    prefixes: dict[nn.Module, list[str]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        prefixes.setdefault(module, []).append(prefix)
    found = False
    for module in model.modules():
        unit = getattr(module, "_fsdp", None)
        if unit is None:
            continue
        found = True
        for flat in unit.flats:
            for place, parameter in zip(flat.places, flat.sharded, strict=True):
                names = [
                    f"{prefix}.{attribute}" if prefix else attribute
                    for holder, attribute in place.holders
                    for prefix in prefixes[holder]
                ]
                yield Entry(names, unit, flat, place, parameter)
    if not found:
        raise ValueError(f"{type(model).__name__} is not sharded: apply fully_shard to it first")


def gather_flats(
    model: nn.Module, part: Callable[[Entry], torch.Tensor | None], only_first: bool = False
) -> Iterator[tuple[Entry, torch.Tensor | None]]:
    """Each parameter with the whole of what its ranks keep parts of: shape as the parameter's, on the CPU.

    part: this rank's part of something shaped like the parameter, shape (n,); None where there is none on any rank
    only_first: the first rank alone gets the whole; None elsewhere

    One all-gather a parameter's flat, of n + padding elements in the dtype of the parts.
    """
    todo = list(entries(model))
    by_flat: dict[int, list[Entry]] = {}
    for entry in todo:
        by_flat.setdefault(id(entry.flat), []).append(entry)
    for group in by_flat.values():
        flat, ranks = group[0].flat, group[0].unit.ranks
        parts = [part(entry) for entry in group]
        present = _anywhere([p is not None for p in parts], group[0].unit)
        dtype = next((p.dtype for p in parts if p is not None), flat.dtype)
        mine = torch.zeros(flat.part, dtype=dtype, device=group[0].unit.device)
        for entry, piece in zip(group, parts, strict=True):
            a, b = flat.mine(entry.place)
            if piece is not None:
                mine[a:b].copy_(piece)
        whole = torch.empty(flat.padded, dtype=dtype, device=mine.device)
        all_gather_single(whole, mine, group=ranks.shard)
        wanted = not only_first or dist.get_rank() == 0
        for entry, exists in zip(group, present, strict=True):
            place = entry.place
            if exists and wanted:
                yield entry, whole[place.start : place.end].view(place.shape).cpu().clone()
            else:
                yield entry, None


def _anywhere(mine: list[bool], unit: Unit) -> list[bool]:
    """Of several things, which are there on at least one of the ranks that share a unit out."""
    flags = torch.tensor(mine, dtype=torch.int32, device=unit.device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=unit.ranks.shard)
    return [bool(flag) for flag in flags.tolist()]


def full_state_dict(model: nn.Module, only_first: bool = False) -> State:
    """All parameters and buffers whole, by the plain model's names, on the CPU. Every rank must call it.

    only_first: the first rank alone gets them, the others an empty dict
    """
    state = _named(gather_flats(model, lambda entry: entry.parameter.detach(), only_first))
    if only_first and dist.get_rank() != 0:
        return {}
    persistent = buffers(model)
    state.update({name: buffer.detach().cpu().clone() for name, buffer in persistent.items()})
    return {name: state[name] for name in _plain_order(model) if name in state}


def full_gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    """All gradients whole, by name, None where there is none; a tied parameter once. Every rank must call it."""
    return {
        entry.names[0]: whole for entry, whole in gather_flats(model, lambda e: e.parameter.grad)
    }


def load_full_state_dict(model: nn.Module, state: State) -> None:
    """Takes this rank's part of each whole tensor. Every rank passes the same state.

    Raises ValueError on all ranks, before anything is changed, for names that are missing or unexpected, shapes that
    differ, and tied parameters with two values.
    """
    agree(lambda: check_full(model, state))
    with torch.no_grad():
        for entry in entries(model):
            low, high = entry.flat.rank * entry.flat.part, (entry.flat.rank + 1) * entry.flat.part
            a, b = max(entry.place.start, low), min(entry.place.end, high)
            if a < b:
                whole = state[entry.names[0]].reshape(-1)
                start = entry.place.start
                entry.parameter.detach().copy_(whole[a - start : b - start])
        for name, buffer in buffers(model).items():
            buffer.copy_(state[name])


def check_full(model: nn.Module, state: State) -> None:
    """Raises ValueError unless `state` is this model's: the same names and shapes."""
    check_names(model, {n: tuple(getattr(t, "shape", ())) for n, t in state.items()}, "the state")
    for entry in entries(model):
        for name in entry.names[1:]:
            if not torch.equal(state[name], state[entry.names[0]]):
                raise ValueError(
                    f"{entry.names[0]} and {name} are one parameter here, and differ in the state. Nothing was loaded."
                )


def check_names(
    model: nn.Module, found: dict[str, tuple[int, ...]], where: str, ignore_empty: bool = False
) -> None:
    """Raises ValueError unless the shapes found are this model's, by name.

    ignore_empty: parameters without elements may be missing
    """
    shapes = {name: tuple(e.place.shape) for e in entries(model) for name in e.names}
    shapes.update({name: tuple(b.shape) for name, b in buffers(model).items()})
    needed = {n for n, shape in shapes.items() if not ignore_empty or 0 not in shape}
    missing, extra = sorted(needed - found.keys()), sorted(found.keys() - shapes.keys())
    if missing or extra:
        raise ValueError(
            f"{where} is of another model: missing {_some(missing)}; unexpected {_some(extra)}. Nothing was loaded."
        )
    for name, shape in found.items():
        if shape != shapes[name]:
            raise ValueError(
                f"{name} is {list(shapes[name])} in the model and {list(shape)} in {where}. Nothing was loaded."
            )


def agree(check: Callable[[], Any]) -> Any:
    """Runs `check` on every rank and returns its result; if it raises on any rank, raises on all of them."""
    error, result = None, None
    try:
        result = check()
    except Exception as caught:
        error = caught
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    for rank, theirs in enumerate(everyone):
        if theirs is not None:
            raise ValueError(f"rank {rank} could not go on, so no rank does: {theirs}")
    return result


def _named(pairs: Iterator[tuple[Entry, torch.Tensor | None]]) -> State:
    return {name: whole for entry, whole in pairs if whole is not None for name in entry.names}


def buffers(model: nn.Module) -> State:
    """The buffers that a plain model's state_dict has."""
    found = {}
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                found[f"{prefix}.{name}" if prefix else name] = buffer
    return found


def _plain_order(model: nn.Module) -> list[str]:
    """Names in the order of the plain model's state_dict."""
    names = []
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name in [*module._parameters, *module._buffers]:
            names.append(f"{prefix}.{name}" if prefix else name)
    return names


def _some(names: list[str]) -> str:
    return (
        ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    ) or "none"
