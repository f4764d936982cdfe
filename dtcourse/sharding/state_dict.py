"""The state of a sharded model as whole tensors by name, the same as the plain model's, and from it.

    whole = full_state_dict(model)               # on every rank, or on the first only; loads into the plain model
    load_full_state_dict(model, whole)           # from a plain model, from another number of ranks: all the same

Whole tensors are gathered one flat, or one DTensor, at a time. Loading checks all names, shapes and dtypes before it
changes anything, on all ranks together: if one rank refuses, all do. For models that no single
rank can hold, see checkpoint.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from dtcourse.parameters.agreement import on_any_rank, raise_on_all_ranks
from dtcourse.parameters.slices import FULL, OTHER, require_whole
from dtcourse.sharding.flat_parameter import FlatParameter
from dtcourse.sharding.sharded_parameter import Place
from dtcourse.sharding.unit import Unit, units_in
from dtcourse.torch_private import all_gather_single, is_persistent, own_buffers, own_parameters

State = dict[str, torch.Tensor]


class Entry(NamedTuple):
    """One parameter of the model: of a unit, or of none, and then whole on every rank."""

    names: list[str]
    """By which the model knows it: several where tied."""
    parameter: nn.Parameter
    """What this rank keeps: its part of a flat, shape (n,), a DTensor, or the whole."""
    shape: torch.Size
    """Of the whole."""
    unit: Unit | None = None
    flat: FlatParameter | None = None
    place: Place | None = None

    def start(self) -> int:
        """The first of the parameter's elements that this rank keeps."""
        if self.flat is None or self.place is None:
            return 0
        return max(self.flat.rank * self.flat.shard_numel - self.place.start, 0)

    def kept_of(self, whole: torch.Tensor) -> torch.Tensor:
        """What this rank keeps of something in the whole parameter's shape."""
        if isinstance(self.parameter, DTensor):
            mesh, placements = self.parameter.device_mesh, self.parameter.placements
            whole = whole.to(mesh.device_type)
            return distribute_tensor(whole, mesh, placements, src_data_rank=None)
        if self.flat is None:
            return whole
        return whole.reshape(-1)[self.start() :][: self.parameter.numel()]


def entries(model: nn.Module) -> list[Entry]:
    """All parameters: the sharded ones in the order of units and flats, then those that are in no unit."""
    prefixes: dict[nn.Module, list[str]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        prefixes.setdefault(module, []).append(prefix)

    def names(holders: Iterable[tuple[nn.Module, str]]) -> list[str]:
        return [_join(prefix, name) for holder, name in holders for prefix in prefixes[holder]]

    found: list[Entry] = []
    sharded: set[tuple[nn.Module, str]] = set()
    units = units_in(model)
    if not units:
        raise ValueError(f"{type(model).__name__} is not sharded: apply fully_shard to it first")
    for unit in units:
        for group in unit.param_groups:
            for place, parameter in zip(group.places, group.sharded, strict=True):
                entry = Entry(names(place.holders), parameter, place.shape)
                if isinstance(group, FlatParameter):
                    entry = entry._replace(unit=unit, flat=group, place=place)
                found.append(entry)
                sharded.update(place.holders)
    check_no_other_slices(model, "full_state_dict (or a checkpoint) of a sharded model")
    others: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in prefixes:
        for name, own in own_parameters(module).items():
            if own is not None and (module, name) not in sharded:
                others.setdefault(own, []).append((module, name))
    return found + [Entry(names(holders), p, p.shape) for p, holders in others.items()]


def check_no_other_slices(model: Any, who: str) -> None:
    """Raises ValueError where a parameter is another technique's slice, which would be taken for a whole one."""
    require_whole(
        model.named_parameters(),
        who,
        "it would take them for whole ones",
        "Use one of the two techniques for this model.",
        besides=(FULL, OTHER),  # a DTensor says of itself what the whole is
    )


def gather_flats(
    model: nn.Module, part: Callable[[Entry], torch.Tensor | None], only_first: bool = False
) -> Iterator[tuple[Entry, torch.Tensor | None]]:
    """Each parameter with the whole of what its ranks keep parts of: shape as the parameter's, on the CPU.

    part: this rank's part of something shaped like the parameter, shape (n,); None where there is none on any rank.
          The whole for a parameter that is in no unit; a DTensor for one that is one
    only_first: the first rank alone gets the whole; None elsewhere

    One all-gather per flat, of n + padding elements in the dtype of the parts, or per DTensor.
    """
    wanted = not only_first or dist.get_rank() == 0
    by_flat: dict[tuple[Unit, FlatParameter], list[Entry]] = {}
    for entry in entries(model):
        if entry.unit is None or entry.flat is None:
            value = part(entry)
            if isinstance(value, DTensor):
                value = value.full_tensor()
            yield entry, value.cpu().clone() if value is not None and wanted else None
        else:
            by_flat.setdefault((entry.unit, entry.flat), []).append(entry)
    for (unit, flat), group in by_flat.items():
        parts = [part(entry) for entry in group]
        present = on_any_rank([p is not None for p in parts], unit.shard_groups.shard, unit.device)
        dtype = next((p.dtype for p in parts if p is not None), flat.dtype)
        mine = torch.zeros(flat.shard_numel, dtype=dtype, device=unit.device)
        for index, piece in enumerate(parts):
            a, b = flat.local_range(index)
            if piece is not None:
                mine[a:b].copy_(piece)
        whole = torch.empty(flat.unsharded_numel, dtype=dtype, device=mine.device)
        all_gather_single(whole, mine, group=unit.shard_groups.shard)
        for entry, place, exists in zip(group, flat.places, present, strict=True):
            if exists and wanted:
                yield entry, whole[place.start : place.end].view(place.shape).cpu().clone()
            else:
                yield entry, None


def full_state_dict(model: nn.Module, only_first: bool = False) -> State:
    """All parameters and buffers whole, by the plain model's names, on the CPU. Every rank must call it.

    only_first: the first rank alone gets them, the others an empty dict

    What is in no unit is each rank's own: fully_shard keeps neither its values nor its gradients alike.
    """
    state = _named(gather_flats(model, lambda entry: entry.parameter.detach(), only_first))
    if only_first and dist.get_rank() != 0:
        return {}
    persistent = buffers(model)
    state.update({name: buffer.detach().cpu().clone() for name, buffer in persistent.items()})
    return {name: state[name] for name in _plain_order(model) if name in state}


def full_gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    """All gradients whole, by name, None where there is none; a tied parameter once. Every rank must call it."""
    found = {e.names[0]: whole for e, whole in gather_flats(model, lambda e: e.parameter.grad)}
    return {name: found[name] for name in _plain_order(model) if name in found}


def load_full_state_dict(model: nn.Module, state: State) -> None:
    """Takes this rank's part of each whole tensor, and all of what is in no unit. Every rank passes the same state.

    Raises ValueError on all ranks, before anything is changed, for names that are missing or unexpected, shapes that
    differ, and tied parameters with two values.
    """
    raise_on_all_ranks(lambda: check_full(model, state))
    with torch.no_grad():
        for entry in entries(model):
            entry.parameter.detach().copy_(entry.kept_of(state[entry.names[0]]))
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
    shapes = {name: tuple(e.shape) for e in entries(model) for name in e.names}
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


def _named(pairs: Iterator[tuple[Entry, torch.Tensor | None]]) -> State:
    return {name: whole for entry, whole in pairs if whole is not None for name in entry.names}


def buffers(model: nn.Module) -> State:
    """The buffers that a plain model's state_dict has."""
    found = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, buffer in own_buffers(module).items():
            if buffer is not None and is_persistent(module, name):
                found[_join(prefix, name)] = buffer
    return found


def _plain_order(model: nn.Module) -> list[str]:
    """Names in the order of the plain model's state_dict."""
    names = []
    for prefix, module in model.named_modules(remove_duplicate=False):
        names += [_join(prefix, name) for name in [*own_parameters(module), *own_buffers(module)]]
    return names


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _some(names: list[str]) -> str:
    return (
        ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    ) or "none"
