"""The function and its arguments serialized; and which part of a call, or of a result, cannot be."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from dtcourse.launch import serialization

HEAVY = 100 << 20  # bytes of function and arguments worth a warning


def serialize_call(
    function: Callable[..., Any], args: Any, kwargs: Any
) -> serialization.Serialized:
    """The call, serialized. TypeError names the part that cannot be sent; a warning names what makes it heavy."""
    try:
        serialized = serialization.serialize((function, args, kwargs))
    except Exception as error:
        raise TypeError(unsendable_call(function, args, kwargs, error)) from None
    size = serialization.size_of(serialized)
    if size > HEAVY:
        parts = [
            (serialization.size_of(serialization.serialize(p)), n)
            for n, p in _parts(function, args, kwargs)
        ]
        biggest, name = max(parts, default=(size, "the function"))
        warnings.warn(
            f"{size / 1e6:,.0f} MB travel to the ranks with this launch, {biggest / 1e6:,.0f} MB of it {name}. "
            "Build large data inside the function, or pass the part that a rank needs.",
            stacklevel=3,
        )
    return serialized


def unsendable_call(function: Any, args: Any, kwargs: Any, error: Exception) -> str:
    """Names the part of a call that cannot be pickled, and says what to do."""
    for name, part in _parts(function, args, kwargs):
        try:
            serialization.serialize(part)
        except Exception as cause:
            return _unsendable(*_find_unpicklable(part, name), cause)
    return f"the function cannot be sent to a rank: {error}"


def unsendable_own(rank: int, values: tuple[Any, ...], error: Exception) -> str:
    """Names the part of what a rank alone is given (each.py) that cannot be pickled, and says what to do."""
    return _unsendable(*_find_unpicklable(values, f"what rank {rank} alone is given"), error)


def _unsendable(path: str, part: Any, cause: Exception) -> str:
    return (
        f"{path} is a {type(part).__name__}, which cannot be sent to a rank ({cause}): "
        "create it inside the function"
    )


def _parts(function: Any, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    """Everything that travels with a call, by name: arguments, and what the function takes from around it."""
    parts = [(f"argument {i}", value) for i, value in enumerate(args)]
    parts += [(f"argument {name!r}", value) for name, value in kwargs.items()]
    if isinstance(function, partial):
        return parts + _parts(function.func, function.args, function.keywords)
    owner = getattr(function, "__self__", None)
    if owner is not None:
        parts.append((f"the object that {function.__name__} is a method of", owner))
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return parts
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # a variable that was never set
            parts.append((f"the enclosing variable {name!r}", cell.cell_contents))
    if function.__module__ == "__main__":  # elsewhere, functions travel by name
        used = _names(code) & set(function.__globals__)
        parts += [(f"the global variable {n!r}", function.__globals__[n]) for n in sorted(used)]
    return parts


def _names(code: Any) -> set[str]:
    """Names that a function's code, and that of the functions inside it, may look up as globals."""
    inner = [c for c in code.co_consts if hasattr(c, "co_names")]
    return set(code.co_names).union(*map(_names, inner))


def unsendable_result(value: Any, error: Exception) -> str:
    """Names the part of a result that cannot be pickled."""
    path, part = _find_unpicklable(value, "the result")
    return (
        f"{path} is a {type(part).__name__}, which cannot be sent to the notebook ({error}): "
        "return plain data (numbers, tensors, lists, dicts of them)"
    )


def _find_unpicklable(value: Any, path: str) -> tuple[str, Any]:
    """The innermost part of a container that cannot be pickled, and the path that leads to it."""
    if isinstance(value, dict):
        parts = [(f"{path}[{key!r}]", part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{path}[{i}]", part) for i, part in enumerate(value)]
    else:
        # A module has no attributes worth naming here, and a class none of its own.
        attributes = {} if isinstance(value, type) else getattr(value, "__dict__", {})
        parts = [(f"{path}.{name}", part) for name, part in attributes.items()]
    for name, part in parts:
        try:
            serialization.serialize(part)
        except Exception:
            return _find_unpicklable(part, name)
    return path, value
