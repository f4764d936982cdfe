"""The tensors in what a function takes or returns: in lists, dicts, dataclasses and any other object, however deep.

A technique that hooks a module's results must find them all: one that it misses reaches backward unannounced. PyTorch's
pytrees open only the container types that are registered with them: no subclass of dict, no dataclass, no object of the
user's own. Here everything is opened that Python can look into.

What cannot be opened (a generator, an object of compiled code; a module, which is no result) is told apart from what
holds none (a number, a string), so that who must be sure can be careful.
"""

from __future__ import annotations

import copy
import types
from collections import deque
from collections.abc import Callable
from dataclasses import is_dataclass
from numbers import Number
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

T = TypeVar("T")

# Hold no tensors that a call could have put there.
_PLAIN = (
    type(None), str, bytes, bytearray, Number, range, slice, types.EllipsisType, np.ndarray, np.generic,
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator, type, types.ModuleType,
)  # fmt: skip

_CLOSED = (
    nn.Module,
    types.GeneratorType,
    types.CoroutineType,
    types.AsyncGeneratorType,
    types.FrameType,
)

_SEQUENCES = (list, tuple, set, frozenset, deque)
_BARE = (*_SEQUENCES, dict)  # themselves, not subclasses: they have no attributes


def tensors(value: Any, closed: list[Any] | None = None) -> list[torch.Tensor]:
    """All tensors in `value`, each once, in the order in which they lie there.

    closed: takes what could not be opened and may hold tensors that are missing in the result
    """
    return instances(value, torch.Tensor, closed)


def instances(value: Any, kind: type[T], closed: list[Any] | None = None) -> list[T]:
    """The same of another class."""
    found: dict[int, T] = {}
    seen: dict[int, Any] = {}  # nests may hold themselves; kept, so that no identity is used again
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, kind):
            found.setdefault(id(item), item)
        elif isinstance(item, (torch.Tensor, *_PLAIN)) or id(item) in seen:
            continue
        else:
            seen[id(item)] = item
            inside = _inside(item)
            if inside is None:
                if closed is not None:
                    closed.append(item)
            else:
                pending += reversed(inside)
    return list(found.values())


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """The same nest with function(tensor) in each tensor's place; `value` itself where that changes nothing.

    Replaced are tensors in sequences, dicts and dataclasses and in subclasses of them, which are copied for it. Any
    other object stays as it is: who gets a copy of, say, a cache would write into a copy.
    """
    done: dict[int, torch.Tensor] = {}  # a tensor that lies there twice is replaced by one

    def mapped(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            if id(item) not in done:
                done[id(item)] = function(item)
            return done[id(item)]
        if isinstance(item, dict):
            before: list[Any] = list(item.values())
        elif isinstance(item, _SEQUENCES):
            before = list(item)
        elif is_dataclass(item) and not isinstance(item, type | nn.Module):
            before = []
        else:
            return item
        inside = [mapped(part) for part in before]
        attributes = {name: (part, mapped(part)) for name, part in attributes_of(item).items()}
        changed = {name: new for name, (old, new) in attributes.items() if new is not old}
        if not changed and all(new is old for new, old in zip(inside, before, strict=True)):
            return item
        return _rebuilt(item, inside, changed)

    return mapped(value)


# --- one object --------------------------------------------------------------------------------------------------


def _inside(item: Any) -> list[Any] | None:
    """What an object holds; None where nobody can tell."""
    if isinstance(item, _CLOSED):
        return None
    held: list[Any] = list(attributes_of(item).values())
    if isinstance(item, types.FunctionType):  # its globals are the program's, not its own
        closure = [cell for cell in item.__closure__ or () if cell != types.CellType()]
        defaults = [*(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values()]
        return [*(cell.cell_contents for cell in closure), *defaults, *vars(item).values()]
    if isinstance(item, types.BuiltinFunctionType):
        return [item.__self__]
    if isinstance(item, dict | types.MappingProxyType):
        return [*item.values(), *held]
    if isinstance(item, _SEQUENCES):
        return [*item, *held]
    return held if held or hasattr(item, "__dict__") or hasattr(item, "__slots__") else None


def attributes_of(item: Any) -> dict[str, Any]:
    """An object's attributes by name: those in its __dict__, and those in slots."""
    if type(item) in _BARE:
        return {}
    found = dict(getattr(item, "__dict__", None) or {})
    if not isinstance(item, tuple):  # torch.max's result has its items as slots, too
        for cls in type(item).__mro__:
            for name, slot in vars(cls).items():
                # A SimpleNamespace says so of its __dict__, too.
                is_slot = isinstance(slot, types.MemberDescriptorType) and name != "__dict__"
                if is_slot and hasattr(item, name):
                    found[name] = getattr(item, name)
    return found


def _rebuilt(item: Any, inside: list[Any], attributes: dict[str, Any]) -> Any:
    """A copy of a container or dataclass with other things inside, and some of its attributes others."""
    if isinstance(item, tuple | frozenset):  # cannot be changed, so it is made anew
        made: Any = item._make(inside) if hasattr(item, "_make") else type(item)(inside)
    else:
        made = copy.copy(item)
    if isinstance(item, dict):
        for key, part in zip(item, inside, strict=True):
            made[key] = part
    elif isinstance(item, list):
        made[:] = inside
    elif isinstance(item, set | deque):
        made.clear()
        for part in inside:
            made.add(part) if isinstance(item, set) else made.append(part)
    for name, part in attributes.items():
        object.__setattr__(made, name, part)  # of a frozen dataclass too
    return made
