"""Mistakes in a call, found before anything is sent: what one rank can see alone, and what takes all to see.

Alone: a rank outside the group, a wrong number of tensors, wrong sizes, dtypes that differ, tensors on two devices.

Together (`agree`): ranks that call different collectives, or the same with different sizes, dtypes, roots or splits.
Undetected, that ends in a hang, a crash or a wrong sum. So the first time that a rank makes a call of some name, size
and dtype on a group, all ranks compare notes through the group's store (the one they met at; not the network that
tensors travel over, so no message is counted or delayed). From then on that call costs nothing.
DTCOURSE_CHECK=always compares in every call (a few tenths of a millisecond), DTCOURSE_CHECK=off in none.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from dtcourse import device, torch_private
from dtcourse.collectives import p2p
from dtcourse.plural import plural


class Signature(NamedTuple):
    """What a rank is about to do, in words that the others can compare.

    call:   the same on every rank of a right program: "all_reduce(SUM) of 10 x torch.float32"
    splits: elements this rank sends to and receives from each rank, where they may differ (uneven all-to-all)
    """

    call: str
    splits: tuple[list[int], list[int]] | None = None


def resolve(group: Any) -> Any:
    """The group itself; the default group for None. ValueError where this process is not in it."""
    p2p.channel(group)
    return dist.group.WORLD if group is None else group


def root(group: Any, global_rank: int | None, group_rank: int | None, name: str) -> int:
    """The root as a group rank, from torch's two ways to say it:
    a global rank (`src`) or a group rank (`group_src`).
    """
    if (global_rank is None) == (group_rank is None):
        if global_rank is not None:
            raise ValueError(
                f"give {name}={global_rank} (global rank) or group_{name}={group_rank} (group rank), not both"
            )
        group_rank = 0
    if group_rank is not None:
        if not 0 <= group_rank < p2p.size(group):
            raise ValueError(
                f"group_{name}={group_rank}: the group has ranks 0 to {p2p.size(group) - 1}"
            )
        return group_rank
    ranks = _global_ranks(group)
    if global_rank not in ranks:
        raise ValueError(
            f"{name}={global_rank} is not in the group, which has the global ranks {ranks}"
        )
    return ranks.index(global_rank)


def _global_ranks(group: Any) -> list[int]:
    if isinstance(group, ProcessGroup):
        try:
            return dist.get_process_group_ranks(group)
        except (KeyError, ValueError):
            pass  # a group that torch does not know by name: its own numbers are all there are
    if hasattr(group, "parent"):
        above = _global_ranks(resolve(group.parent))
        return [above[r] for r in group.ranks]
    return list(range(p2p.size(group)))


def tensors(name: str, group: Any, *given: torch.Tensor) -> None:
    """Every argument is a dense tensor with data, all of one dtype and on one device that this machine's ranks use."""
    for t in given:
        wrong = ""
        if not isinstance(t, torch.Tensor):
            wrong = f"a tensor is needed, got {type(t).__name__}"
        elif t.layout != torch.strided:
            wrong = f"a dense tensor is needed, got layout {t.layout}; use .to_dense()"
        elif not t.is_cpu and t.device.type != device.available():
            wrong = f"the tensor is on {t.device}, ranks send from cpu or {device.available()}"
        elif t.dtype != given[0].dtype or t.device != given[0].device:
            wrong = (
                f"all tensors of a call have one dtype and device, got {given[0].dtype} on "
                f"{given[0].device} and {t.dtype} on {t.device}"
            )
        if wrong:
            raise ValueError(f"{name} on rank {p2p.rank(group)}: {wrong}")


def one_for_each(
    name: str, group: Any, given: Sequence[torch.Tensor] | None, like: torch.Tensor, what: str
) -> None:
    """A list of one tensor for each rank, all of `like`'s number of elements."""
    where = f"{name} on rank {p2p.rank(group)}"
    if given is None or len(given) != p2p.size(group):
        got = "none" if given is None else len(given)
        raise ValueError(
            f"{where}: {what} needs one tensor for each of the {p2p.size(group)} ranks, got {got}"
        )
    tensors(name, group, like, *given)
    for r, t in enumerate(given):
        if t.numel() != like.numel():
            raise ValueError(
                f"{where}: {what}[{r}] has {t.numel()} elements (shape {tuple(t.shape)}), "
                f"and the tensor has {like.numel()} (shape {tuple(like.shape)})"
            )


def whole_and_part(name: str, group: Any, whole: torch.Tensor, part: torch.Tensor) -> None:
    """The whole has exactly as many elements as one part from each rank."""
    tensors(name, group, whole, part)
    if whole.numel() != part.numel() * p2p.size(group):
        raise ValueError(
            f"{name} on rank {p2p.rank(group)}: {p2p.size(group)} ranks of {part.numel()} elements make "
            f"{part.numel() * p2p.size(group)}, but the large tensor has {whole.numel()} (shapes "
            f"{tuple(whole.shape)} and {tuple(part.shape)})"
        )


def split_sizes(
    name: str, group: Any, tensor: torch.Tensor, sizes: Sequence[int] | None, what: str
) -> list[int]:
    """How many rows (along dim 0) belong to each rank: the given sizes, or even ones. They must make the tensor."""
    ranks = p2p.size(group)
    rows = tensor.shape[0] if tensor.dim() else 0
    where = f"{name} on rank {p2p.rank(group)}"
    if not sizes:
        if tensor.dim() == 0 or rows % ranks:
            raise ValueError(
                f"{where}: {plural(rows, 'row')} cannot be split evenly over {plural(ranks, 'rank')}: give {what}"
            )
        return [rows // ranks] * ranks
    if len(sizes) != ranks or any(s < 0 for s in sizes) or sum(sizes) != rows:
        raise ValueError(
            f"{where}: {what}={list(sizes)} must be {ranks} sizes that add up to the tensor's {rows} rows, "
            f"got {len(sizes)} that add up to {sum(sizes)}"
        )
    return [int(s) for s in sizes]


def signature(name: str, tensor: torch.Tensor, **details: object) -> Signature:
    """The Signature of a call on a tensor like this one; details are whatever else must be the same on all ranks."""
    inside = ", ".join([f"{k}={v}" for k, v in details.items()])
    return Signature(f"{name}({inside}) of {tensor.numel()} x {tensor.dtype}")


# --- comparing notes -------------------------------------------------------------------------------------------


class _Notes:
    """What a group, or a subgroup of it, has compared: how often, and which calls need no further comparison."""

    def __init__(self, group: ProcessGroup, ranks: Sequence[int] | None, about: str) -> None:
        self.count = 0
        self.known: set[str] = set()
        self.prefix = f"dtcourse/{about}" if ranks is None else f"dtcourse/{about}/{ranks}"
        # A connection of its own: waiting here, in a worker thread, must not hold up the caller's use of the store.
        self.store = torch_private.own_client(group.get_group_store())


# By torch's group, then by the ranks of a Subgroup of it (None: all of it), and what they are about.
_notes: Any = weakref.WeakKeyDictionary()


def notes_of(group: Any, about: str = "agree") -> _Notes:
    """Where a group compares notes. A Subgroup has no store, and uses that of the group it is in."""
    whole, ranks = getattr(group, "origin", (group, None))
    here = _notes.setdefault(whole, {})
    if (ranks, about) not in here:
        here[ranks, about] = _Notes(whole, ranks, about)
    return here[ranks, about]


def agree(group: Any, mine: Signature, timeout: timedelta | None = None) -> None:
    """ValueError on every rank, with what each rank was about to do, unless all are about to do the same.

    A rank that never comes is waited for as long as the store waits (the group's time limit), and then named.
    """
    end = p2p.channel(group)
    if end.size == 1 or end.guard is not None:
        return  # wire/guard.py finds the same on our own groups, without asking beforehand
    notes = notes_of(group)
    if is_due(mine.call, notes.known):
        compare_notes(group, mine, notes, post(group, mine, notes), timeout)
        notes.known.add(mine.call)


def is_due(what: str, known: set[str]) -> bool:
    """Whether ranks compare what they are about to do, where `known` has been compared."""
    mode = os.environ.get("DTCOURSE_CHECK", "first")
    if mode not in ("first", "always", "off"):
        raise ValueError(f'DTCOURSE_CHECK={mode!r}: it is "first", "always" or "off"')
    return mode == "always" or (mode == "first" and what not in known)


def post(group: Any, mine: Signature, notes: _Notes) -> list[str]:
    """Writes what this rank is about to do. Returns the keys of all ranks' notes, which they write in one order."""
    prefix, notes.count = f"{notes.prefix}/{notes.count}", notes.count + 1
    notes.store.set(f"{prefix}/{p2p.rank(group)}", json.dumps(mine))
    return [f"{prefix}/{r}" for r in range(p2p.size(group))]


def compare_notes(
    group: Any, mine: Signature, notes: _Notes, keys: list[str], timeout: timedelta | None = None
) -> None:
    """Reads what all were about to do. ValueError unless that is the same, or where a rank has not come in time."""
    store, ranks = notes.store, _global_ranks(group)
    try:
        torch_private.wait_for(store, keys, timeout)
    except (dist.DistStoreError, RuntimeError) as error:
        missing = [rank for rank, key in zip(ranks, keys, strict=True) if not store.check([key])]
        raise ValueError(
            f"rank {ranks[p2p.rank(group)]} is in {mine.call}, and ranks {missing} did not come to it"
        ) from error
    compare([Signature(*json.loads(said)) for said in store.multi_get(keys)], ranks)


def compare(said: Sequence[Signature], ranks: Sequence[int] | None = None) -> None:
    """ValueError unless the ranks' signatures (by group rank) fit together. ranks: what they are called."""
    names = range(len(said)) if ranks is None else ranks
    if len({s.call for s in said}) > 1:
        lines = "; ".join(f"rank {r}: {s.call}" for r, s in zip(names, said, strict=True))
        raise ValueError(f"the ranks of this group are not in the same collective: {lines}")
    if any(s.splits is None for s in said):
        return
    for sender, s in enumerate(said):
        for receiver, r in enumerate(said):
            sends, expects = s.splits[0][receiver], r.splits[1][sender]  # type: ignore[index]
            if sends != expects:
                raise ValueError(
                    f"{s.call}: rank {names[sender]} sends {sends} elements to rank {names[receiver]}, which "
                    f"expects {expects}; output_split_sizes[{sender}] of rank {names[receiver]} must fit "
                    f"input_split_sizes[{receiver}] of rank {names[sender]}"
                )
