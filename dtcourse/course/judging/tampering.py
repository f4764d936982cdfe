"""Whether an answer has changed what measures it, seen in its own rank.

Bytes, messages, memory and times are counted by modules of the course, in the process that runs the answer. Which of
them takes part is nobody's list: it is every module of the course that is loaded there, the check's own among them, and
the system's clock. What they hold is compared before and after; of what is loaded in between, a function that the
course's own files do not hold was put there by the answer.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from dtcourse.launch import failures

Marks = dict[str, dict[str, tuple[int, ...]]]

_remembered: Marks = {}  # as they were before ranks were split off, or before this rank's first launch

_sealed: Marks = {}


def remember() -> None:
    """Takes down all that is loaded, in a process whose ranks are copies of it: they need not do so again.

    To look at a function writes to it (its count of references), and so copies the page that ranks share.
    """
    _remembered.update({name: _marks_of(name) for name in list(sys.modules) if _is_ours(name)})


def marks(*steps: Callable[..., Any]) -> Marks:
    """Identity and code of every function and class of the modules that measure, by module and name.

    steps: functions of checks that run here
    """
    found = [name for name in list(sys.modules) if any(_counts(name, step) for step in steps)]
    known = {name: marks for name, marks in _remembered.items() if name not in _SET_BY_LAUNCH}
    before = {name: known.get(name) or _marks_of(name) for name in found}
    # a rank that is kept for another launch is to be then what it is now
    _remembered.update(before)
    return before


class Definition:
    """A context manager round the definition of an answer: `changed` has what `marks` would take for ours later.

    That is what no `remember` saw, and what is loaded meanwhile: what it saw, `marks` compares with what it saw.
    """

    def __enter__(self) -> Definition:
        self.changed: list[str] = []
        self._loaded = {name for name in sys.modules if _is_ours(name)}
        new = {name for name in self._loaded if name in _SET_BY_LAUNCH or name not in _remembered}
        self._before = {name: _marks_of(name) for name in new}
        return self

    def __exit__(self, *_: object) -> None:
        since = {name for name in sys.modules if _is_ours(name)} - self._loaded
        self.changed = changed(self._before) + _foreign(since)


def seal() -> None:
    """Takes down the modules that make a reply to the judge, in the process that makes it."""
    _sealed.update({n: _marks_of(n) for n in list(sys.modules) if n.startswith(_REPLIES)})


def changed_here() -> list[str]:
    """The names of what in them is not as it was then."""
    return changed(_sealed)


def sentence(changed: list[str]) -> str:
    """For who wrote the answer."""
    return f"the answer changes what measures it ({changed[0]})"


def changed(before: Marks, *steps: Callable[..., Any]) -> list[str]:
    """The names of what is not as it was, a few of them. steps: as in marks."""
    different = []
    for name, known in before.items():
        # or there is more of it: a name bound at its first use
        if (now := _marks_of(name)) != known:
            different += [f"{name}.{key}" for key, mark in known.items() if now.get(key) != mark]
    new = (name for name in list(sys.modules) if name not in before)
    different += _foreign(name for name in new if any(_counts(name, step) for step in steps))
    return sorted(different)[:3]


def _foreign(names: Iterable[str]) -> list[str]:
    """What stands in modules and is of no file of the course's."""
    return [f"{name}.{key}" for name in names for key, thing in _things(name) if _is_foreign(thing)]


def _is_ours(name: str) -> bool:
    return name == "dtcourse" or name.startswith("dtcourse.") or name == "time"


def _counts(name: str, step: Callable[..., Any]) -> bool:
    """Whether a module may take part in a measurement: of the checks, the step's own and what lies beside it."""
    if name == step.__module__:
        return True
    beside = step.__module__.rpartition(".")[0]
    return _is_ours(name) and (not name.startswith(_CHECKS) or name.startswith(beside))


_CHECKS = "dtcourse.course.checks."
_REPLIES = ("dtcourse.launch", "dtcourse.course.judging", "dtcourse.collectives.counted")
_SET_BY_LAUNCH = ("dtcourse.events", "dtcourse.emulation.clock")  # an emulated rank's clock


def _marks_of(name: str) -> dict[str, tuple[int, ...]]:
    return {key: _mark(thing) for key, thing in _things(name)}


def _things(name: str) -> Iterator[tuple[str, Any]]:
    """(name, function or class) of all that stands in a module."""
    module = sys.modules.get(name)
    for key, thing in list(vars(module).items()) if module is not None else ():
        yield from _inside(key, thing, name)


def _inside(name: str, thing: Any, module: str) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, type):
        yield name, thing
        if thing.__module__ == module:  # elsewhere it is only known
            for key, member in list(vars(thing).items()):
                for inner in _functions(member):
                    yield f"{name}.{key}", inner
    else:
        for inner in _functions(thing):
            yield name, inner


def _functions(thing: Any) -> list[Any]:
    """What is called where this stands in a module or a class."""
    if isinstance(thing, property):
        return [one for one in (thing.fget, thing.fset) if one is not None][:1]
    if isinstance(thing, (staticmethod, classmethod)):
        return [thing.__func__]
    return [thing] if isinstance(thing, (types.FunctionType, types.BuiltinFunctionType)) else []


def _mark(thing: Any) -> tuple[int, ...]:
    return (id(thing), id(getattr(thing, "__code__", None)))


def _is_foreign(thing: Any) -> bool:
    code = getattr(thing, "__code__", None)
    # a class has none, or a descriptor of it; and dataclasses write theirs in no file
    if not isinstance(code, types.CodeType) or code.co_filename == "<string>":
        return False
    return not _is_library(code.co_filename)


_is_library = cache(failures.is_library)
