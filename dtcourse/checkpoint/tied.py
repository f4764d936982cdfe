"""One value in a checkpoint of a parameter with several names, also where ranks hold copies of it.

A pipeline's first stage has the embedding, its last one the output layer, and both are one parameter: each trains a
copy of its own, by the same gradients. Copies that have come to differ are two models, and a checkpoint would mix them.
So before anything is written the copies are compared, by digests of their bits; then the first of their ranks writes
its value under all names, as a plain model has it. Loading reads all names, and compares their values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from dtcourse.checkpoint.held import Held
from dtcourse.parameters.cuts import Run
from dtcourse.parameters.naming import Entry
from dtcourse.parameters.owners import ModelOwners
from dtcourse.parameters.placement import local
from dtcourse.parameters.whole import gathered
from dtcourse.tensor_bytes import as_bytes


def written_names(held: Held) -> list[tuple[Entry, list[str]]]:
    """Each parameter, and the names under which this rank writes it: of a copy those alone that no other rank knows."""
    later = held.owners.later() if held.owners else ()
    found = []
    for entry in held.entries:
        known = _names_of_copies(entry, held.owners)
        if entry.parameter in later:
            names = [name for name in entry.names if name not in known]
        else:
            names = list(dict.fromkeys([*entry.names, *known]))
        found.append((entry, names))
    return found


def check_copies(held: Held) -> None:
    """Raises ValueError, with names and numbers, where two ranks' copies of a parameter differ. A collective: of
    digests, and only where they differ of values.
    """
    owners = held.owners
    if owners is None or not owners.tied:
        return
    tied = [entry for entry in held.entries if _names_of_copies(entry, owners)]
    # The run of a flat that a rank keeps is another one on each stage: its whole is compared.
    in_flats = [e for e in tied if any(isinstance(cut, Run) for cut in e.placed.cuts)]
    mine = {e.names[0]: local(e.parameter) for e in tied if e not in in_flats}
    for entry, whole in gathered(in_flats, lambda entry: local(entry.parameter)):
        assert whole is not None, "each rank has its piece"
        mine[entry.names[0]] = whole
    digests = owners.said_by_all({name: _digest(value) for name, value in mine.items()})
    copies = [_held(names, digests) for names in owners.tied]
    unlike = [of_one for of_one in copies if len({digest for _, _, digest in of_one}) > 1]
    if not unlike:
        return
    values = owners.said_by_all({name: value.cpu() for name, value in mine.items()})
    ranks = dist.get_process_group_ranks(owners.group)
    (first, name, one), *others = _held([name for _, name, _ in unlike[0]], values)
    for rank, other_name, other in others:
        if _digest(other) != _digest(one):
            raise ValueError(
                f"{name} on rank {ranks[first]} and {other_name} on rank {ranks[rank]} are copies of one parameter, "
                f"and differ{_by(one, other)}: do all their ranks take the same steps? Nothing was saved."
            )


def check_values(
    entry: Entry, owners: ModelOwners | None, read: Mapping[str, Any], where: Any
) -> None:
    """Raises ValueError where names of one parameter have two values. read: what came, by name"""
    found = [(name, read[name]) for name in read_names(entry, owners) if name in read]
    for name, value in found[1:]:
        first, one = found[0]
        if not torch.equal(value, one):
            raise ValueError(
                f"{first} and {name} are one parameter here, and differ in {where}{_by(one, value)}. Nothing was "
                "loaded."
            )


def read_names(entry: Entry, owners: ModelOwners | None) -> list[str]:
    """The names under which a parameter is read: the first of those who hold copies reads the others' too."""
    if owners and entry.parameter in owners.later():
        return entry.names
    return list(dict.fromkeys([*entry.names, *_names_of_copies(entry, owners)]))


def _names_of_copies(entry: Entry, owners: ModelOwners | None) -> list[str]:
    """All names of a parameter of which several stages have a copy; [] of any other."""
    tied = owners.tied if owners else ()
    return [name for names in tied if {*names} & {*entry.names} for name in names]


def _held(names: Any, said: list[dict[str, Any]]) -> list[tuple[int, str, Any]]:
    """(group rank, name there, what was said of it) of all ranks that hold a parameter."""
    return [
        (r, name, of_rank[name])
        for r, of_rank in enumerate(said)
        for name in of_rank
        if name in names
    ]


def _digest(value: torch.Tensor) -> bytes:
    return hashlib.blake2b(as_bytes(value).cpu().numpy().tobytes()).digest()


def _by(one: torch.Tensor, other: torch.Tensor) -> str:
    if one.shape != other.shape:
        return f" ({list(one.shape)} and {list(other.shape)})"
    unlike = int((one != other).sum())
    largest = (one.double() - other.double()).abs().max().item()
    return f" in {unlike} of {one.numel()} elements, by at most {largest:.2g}"
