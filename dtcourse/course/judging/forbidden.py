"""Ready-made answers: where an answer names what does the whole of an exercise, it is refused.

An exercise lists modules and functions by their full names. An answer may get at one under another name (an alias, a
module that is taken apart, `from ... import`), so each name in its code is followed to what its imports say that it is.
Only its text is read. What hides a name from that (a string, another module's alias) is seen
where it is called, of what the exercise watches (ready_made.py); the rest is left to the checks: they count.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable

from dtcourse.collectives.algorithms import ALGORITHMS as TABLE
from dtcourse.course.judging import course_names
from dtcourse.course.judging.framework import CheckFailed, Exercise
from dtcourse.course.judging.taking import Piece, take, with_arguments

# The course's own collectives; p2p, which is send and receive, is not among them.
ALGORITHMS = tuple(f"dtcourse.collectives.{name}" for name in (*TABLE, "algorithms", "autograd"))


def found(pieces: Iterable[Piece], forbidden: tuple[str, ...]) -> str:
    """A sentence on the first thing that an answer names and is not to use; empty where it names none.

    forbidden: of this exercise (see Exercise); what no answer is to use is in course_names.py
    """
    trees = [ast.parse(piece.code) for piece in pieces]
    named = _imported(trees)
    names = [
        name
        for tree in trees
        for node, own in with_arguments(tree, set(named))
        if (name := _name(node, {one: full for one, full in named.items() if one not in own}))
    ]
    for name in names:
        if any(name == one or name.startswith(one + ".") for one in forbidden):
            return f"the answer uses {name}, and this exercise asks you to write that yourself"
    ours = dict.fromkeys(name for name in names if name.startswith("dtcourse."))
    return next(filter(None, map(course_names.refused, ours)), "")


def in_words(forbidden: tuple[str, ...]) -> str:
    """The sentence for an exercise's text that says what is refused; empty where nothing is."""
    shown, named = dict.fromkeys(forbidden), []
    if set(ALGORITHMS) <= set(forbidden):
        named = ["the algorithms of `dtcourse.collectives` (its `p2p` is allowed)"]
        shown = {one: None for one in shown if one not in ALGORITHMS}
    named += [f"`{one}`" for one in shown]
    if not named:
        return ""
    listed = ", ".join(named[:-1]) + " or " + named[-1] if len(named) > 1 else named[0]
    return f"An answer that uses {listed} is refused."


def in_this_notebook(exercise: Exercise) -> str:
    """The same for what was typed into the kernel that asks; empty outside of one."""
    typed = list(map(str, getattr(_shell(), "user_ns", {}).get("In", [])))
    cells = [{"cell_type": "code", "source": source} for source in _latest(typed)]
    try:
        return found(take({"cells": cells}, exercise.takes), exercise.forbidden)
    # the functions come from elsewhere, or are refused for more where points are given
    except CheckFailed:
        return ""


def _latest(cells: list[str]) -> list[str]:
    """The same cells without functions and classes that a later one defines anew."""
    latest, defined = [], set[str]()
    for source in reversed(cells):
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            latest.append(source)
            continue
        kept = []
        for statement in reversed(tree.body):
            name = getattr(statement, "name", None)
            if name not in defined:
                kept.append(statement)
            if name:
                defined.add(name)
        latest.append(ast.unparse(ast.Module(kept[::-1], [])))
    return latest[::-1]


def _shell() -> object:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def _imported(trees: list[ast.Module]) -> dict[str, str]:
    """{name: what it stands for} of all imports, and of `name = module.thing`."""
    named: dict[str, str] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    head = alias.name.partition(".")[0]
                    named[alias.asname or head] = alias.name if alias.asname else head
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    named[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and (name := _dotted(node.value, named)):
                for target in node.targets:
                    if isinstance(target, ast.Name) and target.id not in named:
                        named[target.id] = name
    return named


def _name(node: ast.AST, named: dict[str, str]) -> str:
    """The full name that a piece of syntax uses; what is imported and not used is nobody's answer."""
    if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
        return f"{node.module}.*"
    return _dotted(node, named) if isinstance(node, ast.expr) else ""


def _dotted(node: ast.expr, named: dict[str, str]) -> str:
    """torch.nn.functional.dropout for F.dropout; empty for what does not begin with an imported name."""
    if isinstance(node, ast.Name):
        return named.get(node.id, "")
    if isinstance(node, ast.Attribute) and (base := _dotted(node.value, named)):
        return f"{base}.{node.attr}"
    if isinstance(node, ast.Call) and _plain_getattr(node):
        base = _dotted(node.args[0], named)
        return f"{base}.{node.args[1].value}" if base else ""  # type: ignore[attr-defined]
    return ""


def _plain_getattr(node: ast.Call) -> bool:
    return (
        isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and len(node.args) >= 2
        and isinstance(node.args[1], ast.Constant)
    )
