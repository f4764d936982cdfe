"""Tensors that only the garbage collector frees: found, and named.

Python frees an object when its last reference goes, and a tensor's memory with it, at once. Objects that refer to each
other in a circle keep one another alive until the garbage collector comes by, and it comes after so many new *objects*,
knowing nothing of their bytes: a gigabyte can wait behind a few hundred small ones. Typical circles: an exception kept
in a variable (its traceback holds the frames, these hold all their tensors), an object with a bound method of itself as
a hook, a tensor with an attribute that leads back to it.

PyTorch draws such circles with torch.utils.viz._cycles; here they are counted.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class InCycle:
    """A tensor that nothing but a circle of references keeps alive."""

    bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    held_by: tuple[str, ...]  # types of the objects of the circle that refer to it


def tensors_in_cycles() -> list[InCycle]:
    """Collects garbage and says which tensors were in it, largest first; a storage counts once.

    An empty list is what a training loop should give: all of its tensors went when their last reference did.
    """
    flags = gc.get_debug()
    gc.set_debug(gc.DEBUG_SAVEALL)  # what is found is kept in gc.garbage instead of freed
    try:
        start = len(gc.garbage)
        gc.collect()
        found = _describe(gc.garbage[start:])
        del gc.garbage[start:]
    finally:
        gc.set_debug(flags)
    gc.collect()  # now it is freed for good
    return sorted(found, key=lambda t: -t.bytes)


def _describe(garbage: list[object]) -> list[InCycle]:
    holders: dict[int, set[str]] = {}  # tensor -> types of what refers to it
    owner: dict[int, str] = {}  # attributes' dict -> type of the object whose attributes they are
    for thing in garbage:
        for referent in gc.get_referents(thing):
            if isinstance(referent, dict) and not isinstance(thing, dict | list | tuple):
                owner[id(referent)] = type(thing).__name__
            elif isinstance(referent, torch.Tensor):
                name = owner.get(id(thing), type(thing).__name__)
                holders.setdefault(id(referent), set()).add(name)
    found: dict[int, InCycle] = {}
    for thing in garbage:
        for tensor in _tensors(thing):
            storage, names = tensor.untyped_storage(), sorted(holders.get(id(tensor), ()))
            found.setdefault(
                id(storage),
                InCycle(storage.nbytes(), tuple(tensor.shape), tensor.dtype, tuple(names)),
            )
    return list(found.values())


def _tensors(thing: object) -> list[torch.Tensor]:
    """The tensor itself, or those that a container or an object's attributes hold directly."""
    if isinstance(thing, torch.Tensor):
        return [thing]
    return [t for t in gc.get_referents(thing) if isinstance(t, torch.Tensor)]
