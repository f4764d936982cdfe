"""What an answer's process imports before it runs, so that its ranks, which are copies of it, find it loaded.

That is what the checks of these exercises import, and of PyTorch's larger parts those that checks or answers use, as
far as their text tells: such a part takes as long to import as all the rest. What the text does not tell, a rank
imports when it gets there. It takes longer, and no more.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from dtcourse.course.judging.framework import Exercise, modules
from dtcourse.course.judging.taking import Piece
from dtcourse.launch import server
from dtcourse.launch.parts import PARTS


def everything() -> list[str]:
    """For answers to any exercise."""
    return [*modules(), *server.PRELOAD]


def of(answers: Iterable[tuple[Exercise, list[Piece]]]) -> list[str]:
    """For these answers to these exercises."""
    imported: dict[str, None] = {}
    names: set[str] = set()
    for exercise, pieces in answers:
        imported |= dict.fromkeys(exercise.modules)
        for module in exercise.modules:
            tree = ast.parse(_source(module))
            imported |= dict.fromkeys(_imports(tree))
            names |= _names(tree)
        for piece in pieces:
            names |= _names(ast.parse(piece.code))
    parts = [part for part, users in PARTS.items() if users & names]
    return [*imported, *(name for name in server.PRELOAD if name not in PARTS), *parts]


def _source(module: str) -> str:
    spec = find_spec(module)
    return Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""


def _imports(tree: ast.AST) -> Iterable[str]:
    """The modules that code imports, in its functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _names(tree: ast.AST) -> set[str]:
    """Every name in code, but what stands in a string."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found.update((node.module or "").split("."))
        elif isinstance(node, ast.alias):
            found.update(node.name.split("."))
    return found
