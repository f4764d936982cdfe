"""Ready-made code that runs while an answer runs, under whatever name the answer got at it.

forbidden.py reads an answer's text, and a name can be hidden from a reader: another module's alias, a string, a table.
A call cannot be hidden from the rank that makes it. Python tells a profiling function of each call in its thread and in
threads that are started later, with the code that runs; what is looked for is known by its file or by its code. So it
does not matter where the answer has it from. The whole of a check's step is watched: an exercise watches nothing that
its own steps, PyTorch's collectives or an emulated device call by themselves.
"""

from __future__ import annotations

import _thread
import inspect
import os
import sys
import threading
import types
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


class Watch:
    """A context manager: `called` has the full names of watched functions that ran inside, in the order of first calls.

    names:  modules, packages, classes and functions by their full names, as an exercise forbids them
    called: nothing, where nothing was called
    kept:   whether the profiling function was this one all the time; else the answer took it off, or has begun a thread
            that has none
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.called: dict[str, None] = {}
        self.kept = True
        self._modules: dict[str, str] = {}  # file, or folder with a separator at its end: module
        self._codes: dict[types.CodeType, str] = {}
        self._builtins: dict[int, str] = {}
        for name in names:
            self._look_for(name)
        self._known: dict[str, str] = {}
        self._before: Any = None
        self._hook = self._see  # one object, to be found again

    def __enter__(self) -> Watch:
        if self._modules or self._codes or self._builtins:
            self._before = sys.getprofile()
            threading.setprofile(self._hook)
            sys.setprofile(self._hook)
            _now_watching(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._modules or self._codes or self._builtins:
            _now_watching(None)
            self.kept &= self._is_on()
            sys.setprofile(self._before)
            threading.setprofile(self._before)

    def _is_on(self) -> bool:
        return sys.getprofile() is self._hook is threading.getprofile()

    def hear(self, event: str) -> None:
        """What Python says of this process (sys.addaudithook)."""
        if event == "sys.setprofile":  # a thread of Python's begins so
            self.kept &= _file_of_caller() == threading.__file__

    def _look_for(self, name: str) -> None:
        module, attributes = _module_of(name), ""
        if module != name:
            attributes = name[len(module) + 1 :]
        if not attributes:
            spec = find_spec(module)
            assert spec is not None, module
            for folder in spec.submodule_search_locations or ():
                self._modules[os.path.join(folder, "")] = module
            if spec.origin and not spec.submodule_search_locations:
                self._modules[spec.origin] = module
            return
        thing: Any = import_module(module)
        for attribute in attributes.split("."):
            thing = getattr(thing, attribute)
        members = vars(thing).values() if isinstance(thing, type) else [thing]
        for member in members:
            plain = inspect.unwrap(getattr(member, "__func__", member))
            if isinstance(plain, types.FunctionType):
                self._codes[plain.__code__] = name
            elif isinstance(plain, types.BuiltinFunctionType):
                self._builtins[id(plain)] = name

    def _see(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            # a module's or a class's own body is no call of what is in it
            if not code.co_flags & inspect.CO_OPTIMIZED:
                return
            found = self._codes.get(code, "")
            module = "" if found else self._module(code.co_filename)
            if module and not self._is_imported(frame):
                found = f"{module}.{code.co_qualname}"
            if found:
                self.called[found] = None
        elif event == "c_call" and id(argument) in self._builtins:
            self.called[self._builtins[id(argument)]] = None
        elif event == "c_call" and id(argument) in _STARTING:
            self.kept &= frame.f_code.co_filename == threading.__file__ and self._is_on()

    def _module(self, file: str) -> str:
        if file not in self._known:
            self._known[file] = next(
                (
                    name
                    for path, name in self._modules.items()
                    if file == path or (path.endswith(os.sep) and file.startswith(path))
                ),
                "",
            )
        return self._known[file]

    def _is_imported(self, frame: types.FrameType | None) -> bool:
        """Whether this runs because a watched module's body does: importing it is no use of it."""
        while frame is not None:
            code = frame.f_code
            if code.co_name == "<module>" and self._module(code.co_filename):
                return True
            frame = frame.f_back
        return False


# What begins a thread: threading's own names are among them, and since Python 3.13 it is start_joinable_thread.
_STARTING = {id(thing) for name, thing in vars(_thread).items() if name.startswith("start_")}


def _file_of_caller() -> str:
    """Of what Python told of to an audit hook, and that to `hear`; empty where that is no Python code."""
    try:
        return sys._getframe(3).f_code.co_filename
    except ValueError:
        return ""


_watch: Watch | None = None
_hears = False


def _now_watching(watch: Watch | None) -> None:
    global _watch, _hears
    if not _hears:  # there is no way to take it off again

        def hear(event: str, _: tuple[Any, ...]) -> None:
            if _watch is not None:
                _watch.hear(event)

        sys.addaudithook(hear)
        _hears = True
    _watch = watch


def _module_of(name: str) -> str:
    """The longest beginning of a full name that is a module.

    Raises ValueError if none is.
    """
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            if find_spec(module) is not None:
                return module
        except (ImportError, AttributeError, ValueError):
            continue
    raise ValueError(f"{name}: no module has this name, or its beginning")
