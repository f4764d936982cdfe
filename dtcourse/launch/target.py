"""What a command line names: the function file.py:step (or a .pkl of a call), and its arguments as --name value."""

from __future__ import annotations

import ast
import importlib.util
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def load(target: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The function that a target names, and the arguments that a .pkl brings along."""
    if target.endswith(".pkl"):
        if not Path(target).is_file():
            raise ValueError(f"there is no file {target}")
        sys.path.insert(0, str(Path(target).resolve().parent))
        try:
            return pickle.loads(Path(target).read_bytes())
        except Exception as error:
            raise ValueError(
                f"{target} cannot be read here ({type(error).__name__}: {error}): write it again with "
                "torchrun_command, in the Python that runs this"
            ) from None
    file, colon, name = target.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise ValueError(f"{target!r} does not read file.py:function")
    if not Path(file).is_file():
        raise ValueError(f"there is no file {file}")
    sys.path.insert(0, str(Path(file).resolve().parent))
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None, "a .py file has a spec"
    assert spec.loader is not None, "and a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{file} has no function {name}")
    return function, (), {}


def arguments(words: Sequence[str]) -> dict[str, Any]:
    """--name value pairs as keyword arguments."""
    found: dict[str, Any] = {}
    words = list(words)
    while words:
        name, *words = words
        if not name.startswith("--"):
            raise ValueError(f"{name!r}: arguments of the function read --name value")
        name, equals, value = name[2:].partition("=")
        if not equals:
            if not words:
                raise ValueError(f"--{name} has no value")
            value, *words = words
        found[name.replace("-", "_")] = value_of(value)
    return found


def value_of(text: str) -> Any:
    """32, 0.1, True, [1, 2] as Python reads them; all else as text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
