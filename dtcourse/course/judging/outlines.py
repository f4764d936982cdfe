"""What an exercise says of itself, read from its file's text: nothing of it is imported.

An answer that is not written yet is told so by its exercise's name, functions and target, and loses its points. None of
that needs the checks themselves, which import torch. So they are loaded when there is an answer to put them to.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dtcourse.course.judging.framework import Answer, Exercise, exercises, modules


@dataclass
class Outline(Exercise):
    """An exercise whose checks have titles and points, and cannot be run. What is forbidden is not read.

    module: where it is
    """

    module: str = ""

    def load(self) -> Exercise:
        """The exercise itself, with its checks."""
        return exercises(self.lesson, self.name)[self.name]

    @property
    def modules(self) -> list[str]:
        """See Exercise."""
        return [self.module]


def outlines(lesson: str) -> dict[str, Exercise]:
    """The exercises of a lesson by name, in its notebook's order.

    Raises ValueError where one is not written out: what it says of itself is computed.
    """
    return {outline.name: outline for outline in _outlines(lesson)}


def _outlines(lesson: str) -> Iterator[Outline]:
    for name in modules(lesson):
        spec = find_spec(name)
        assert spec is not None, name
        assert spec.origin is not None, name
        yield _read(Path(spec.origin), name)


def _read(path: Path, module: str) -> Outline:
    statements = ast.parse(path.read_text(encoding="utf-8")).body
    calls = [one.value for one in statements if isinstance(one, ast.Assign)]
    (made,) = (one for one in calls if isinstance(one, ast.Call) and _name(one) == "Exercise")
    decorators = [
        decorator
        for one in statements
        if isinstance(one, ast.FunctionDef)
        for decorator in one.decorator_list
        if isinstance(decorator, ast.Call) and _name(decorator) == "check"
    ]
    try:
        positional, named = _arguments(made)
        outline = Outline(*positional, **{**named, "module": module})
        for decorator in decorators:
            positional, named = _arguments(decorator)
            outline.check(*positional, **named)(_not_loaded)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return outline


def _name(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


_NOT_READ = (None, "forbidden", "watched")


def _arguments(call: ast.Call) -> tuple[list[Any], dict[str, Any]]:
    """Of a call whose arguments are written out, but for what is forbidden, which is often a list of another module."""
    named = {one.arg: one.value for one in call.keywords if one.arg not in _NOT_READ}
    positional = [ast.literal_eval(one) for one in call.args]
    return positional, {str(name): ast.literal_eval(value) for name, value in named.items()}


def _not_loaded(_: Answer) -> None:
    raise AssertionError("an outline has no checks to run: load() gives the exercise")
