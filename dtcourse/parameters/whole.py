"""The whole model's state and gradients, from pieces, and into them: whatever techniques have cut it, in which order.

    whole = full_state_dict(model)               # a collective: every rank calls it
    load_full_state_dict(model, whole)           # from a plain model, from another layout: all the same

Each cut of a parameter (placement.py) is undone from the last one back: a gather over its axis gives what the technique
before had left there. One all-gather per cut and parameter, of its largest piece per rank; the parameters of one flat
tensor travel together, as the flat does: its padding included. What is on its owner alone is broadcast from there.
Loading checks all names, shapes and dtypes before it changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtcourse import device
from dtcourse.parameters.agreement import on_any_rank, raise_on_all_ranks
from dtcourse.parameters.cuts import Elsewhere, Owners, Run
from dtcourse.parameters.naming import (
    Entry,
    buffers,
    entries,
    gradients_in,
    names_in,
    plain_order,
    with_extra_state,
)
from dtcourse.parameters.owners import owners_of
from dtcourse.parameters.placement import local
from dtcourse.torch_private import all_gather_single

State = dict[str, Any]


def full_state_dict(model: nn.Module, only_first: bool = False, on_cpu: bool = False) -> State:
    """All parameters and buffers whole, by the whole model's names. Every rank must call it.

    only_first: the first rank alone gets them, the others an empty dict;  on_cpu: in host memory

    What no technique has cut is each rank's own.
    """
    wanted, owners = not only_first or dist.get_rank() == 0, owners_of(model)
    state: State = {}
    for entry, whole in gathered(entries(model), lambda entry: local(entry.parameter)):
        if (wanted or owners) and whole is not None:
            state.update(dict.fromkeys(entry.names, _kept(whole, on_cpu)))
    if not wanted and not owners:
        return {}
    state.update({name: _kept(buffer.detach(), on_cpu) for name, buffer in buffers(model).items()})
    for name, module in with_extra_state(model).items():
        state[name] = module.get_extra_state()
    mine = {name: state[name] for name in plain_order(model) if name in state}
    if owners is None:
        return mine
    return {n: t for n, t in owners.everyones(mine, on_cpu) if wanted}


def full_gradients(model: nn.Module, on_cpu: bool = False) -> dict[str, Tensor | None]:
    """All gradients whole, by the whole model's names, None where there is none; a tied one once. A collective."""
    found, owners = {}, owners_of(model)
    elsewhere = owners.later() if owners else ()
    for entry, whole in gathered(gradients_in(model), lambda entry: _gradient(entry.parameter)):
        if entry.parameter not in elsewhere:
            found[entry.names[0]] = None if whole is None else _kept(whole, on_cpu)
    mine = {name: found[name] for name in plain_order(model) if name in found}
    return dict(owners.everyones(mine, on_cpu)) if owners else mine


def load_full_state_dict(
    model: nn.Module, state: Mapping[str, Any], on_all_ranks: bool = True
) -> None:
    """Takes this rank's piece of each whole tensor. Every rank passes the same state.

    on_all_ranks: where one rank refuses, all do: one small message. False: nothing is sent

    Raises ValueError, before anything is changed, for names that are missing or unexpected, shapes that differ, and
    tied parameters with two values.
    """
    owners = owners_of(model)
    others: set[str] = owners.names_of_others(names_in(model)) if owners else set()

    def check() -> None:
        if missing := sorted(others - state.keys()):
            raise ValueError(
                f"the state is of another model: missing {_some(missing)}. Nothing was loaded."
            )
        check_tied(state, owners.tied if owners else ())
        check_full(model, {name: value for name, value in state.items() if name not in others})

    if on_all_ranks:
        raise_on_all_ranks(check)
    else:
        check()
    with torch.no_grad():
        for entry in entries(model):
            mine, whole = local(entry.parameter), state[entry.names[0]]
            mine.copy_(entry.placed.cut(whole.to(mine.device)))
        for name, buffer in buffers(model).items():
            buffer.copy_(state[name])
    for name, module in with_extra_state(model).items():
        module.set_extra_state(state[name])


# --- pieces put together ----------------------------------------------------------------------------------------


def gathered(
    held: Iterable[Entry], piece: Callable[[Entry], Tensor | None]
) -> Iterator[tuple[Entry, Tensor | None]]:
    """Each parameter with the whole of what its ranks have pieces of, on every rank; None where no rank has one.

    piece: this rank's, shaped as what it keeps of the parameter

    Of runs of a flat, a rank that keeps no element may have no piece either: it is asked for. Owners are asked too.
    """
    flats: dict[Any, list[Entry]] = {}
    owned: dict[Any, list[Entry]] = {}
    for entry in held:
        last = entry.placed.cuts[-1:]
        if last and isinstance(last[0], Run):
            flats.setdefault((last[0].flat, last[0].group), []).append(entry)
        elif last and isinstance(last[0], Owners):
            owned.setdefault(last[0].group, []).append(entry)
        else:
            mine = piece(entry)
            yield entry, None if mine is None else _undone(entry, mine, len(entry.placed.cuts))
    undone = [(_from_flat, of_one) for of_one in flats.values()]
    undone += [(_from_owners, of_one) for of_one in owned.values()]
    for without_last, of_one in undone:
        for entry, slice_ in without_last(of_one, piece):
            last_but_one = len(entry.placed.cuts) - 1
            yield entry, None if slice_ is None else _undone(entry, slice_, last_but_one)


def _undone(entry: Entry, piece: Tensor, cuts: int) -> Tensor:
    """The first so many cuts of a parameter undone."""
    for cut in reversed(entry.placed.cuts[:cuts]):
        if isinstance(cut, Elsewhere):
            raise ValueError(
                f"{entry.names[0]} was cut ({cut.technique}) in a way, or in a process, that is unknown here: build "
                "the model again, and load a state"
            )
        piece = cut.join(piece)
    return piece


def _from_flat(
    held: list[Entry], piece: Callable[[Entry], Tensor | None]
) -> Iterator[tuple[Entry, Tensor | None]]:
    """What lies in one flat tensor, gathered with one message of its parts."""
    runs: list[Run] = [entry.placed.cuts[-1] for entry in held]
    group, each, here = runs[0].group, runs[0].each, device.current()
    parts = [piece(entry) for entry in held]
    present = on_any_rank([part is not None for part in parts], group, here)
    if not any(present):
        yield from ((entry, None) for entry in held)
        return
    dtype = next((p.dtype for p in parts if p is not None), held[0].parameter.dtype)
    rank = dist.get_rank(group)
    mine = torch.zeros(each, dtype=dtype, device=here)
    for run, part in zip(runs, parts, strict=True):
        if part is not None and part.numel():
            begin = run.start + run.mine[0] - rank * each
            mine[begin : begin + part.numel()].copy_(part)
    flat = torch.empty(each * dist.get_world_size(group), dtype=dtype, device=here)
    all_gather_single(flat, mine, group=group)
    for entry, run, exists in zip(held, runs, present, strict=True):
        end = run.start + run.shape.numel()
        yield entry, flat[run.start : end].view(run.shape) if exists else None


def _from_owners(
    held: list[Entry], piece: Callable[[Entry], Tensor | None]
) -> Iterator[tuple[Entry, Tensor | None]]:
    """What is whole on one rank of a group each, broadcast one by one where its owner has it."""
    owners: list[Owners] = [entry.placed.cuts[-1] for entry in held]
    parts = [piece(entry) for entry in held]
    here = [o.counts and part is not None for o, part in zip(owners, parts, strict=True)]
    present = on_any_rank(here, owners[0].group, device.current())
    for entry, owner, part, exists in zip(held, owners, parts, present, strict=True):
        room = local(entry.parameter) if part is None else part
        yield entry, owner.join(room) if exists else None


def _gradient(parameter: nn.Parameter) -> Tensor | None:
    return None if parameter.grad is None else local(parameter.grad)


def _kept(whole: Tensor, on_cpu: bool) -> Tensor:
    """A copy of its own: what was gathered may be a view of more."""
    return whole.cpu().clone() if on_cpu else whole.clone()


# --- another model's state? -------------------------------------------------------------------------------------


def check_full(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Raises ValueError unless `state` is this model's: the same names and shapes."""
    more = with_extra_state(model)
    found = {n: tuple(getattr(t, "shape", ())) for n, t in state.items() if n not in more}
    check_names(model, found, "the state")
    check_tied(state, [entry.names for entry in entries(model)])


def check_tied(state: Mapping[str, Any], tied: Iterable[Iterable[str]]) -> None:
    """Raises ValueError where names of one parameter have two values in the state."""
    for names in tied:
        first, *others = [name for name in names if name in state] or [""]
        for name in others:
            if not torch.equal(state[name], state[first]):
                raise ValueError(
                    f"{first} and {name} are one parameter here, and differ in the state. Nothing was loaded."
                )


def check_names(
    model: nn.Module,
    found: Mapping[str, tuple[int, ...]],
    where: str,
    ignore_empty: bool = False,
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


def _some(names: list[str]) -> str:
    return (
        ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    ) or "none"
