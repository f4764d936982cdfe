"""An answer's statements become functions: in a rank, never in the process that speaks with the judge."""

from __future__ import annotations

import ast
import linecache
import os
from dataclasses import dataclass
from typing import Any

from dtcourse.course.judging import attempts, books, statements, tampering
from dtcourse.course.judging.drawing import drawing
from dtcourse.course.judging.requirements import CheckFailed, Refused, Unfinished
from dtcourse.course.judging.taking import Piece
from dtcourse.launch import own_process

# Of what may have been made in a cell that is not run.
TAKEN = (
    "A check takes your functions and what makes the names that these use (definitions, imports, assignments, "
    "append and the like), and runs no other statement of the notebook: no call of a function that sets a global name"
)


@dataclass(frozen=True)
class Written:
    """An answer as its author wrote it. Sent to a rank, it arrives there as `arrived` makes it.

    takes:    the names of its functions
    known_to: the ranks on which it becomes functions; None: all
    """

    pieces: list[Piece]
    takes: tuple[str, ...]
    known_to: tuple[int, ...] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return arrived, (self.pieces, self.takes, self.known_to)


def arrived(
    pieces: list[Piece], takes: tuple[str, ...], known_to: tuple[int, ...] | None = None
) -> tuple[Any, ...] | CheckFailed:
    """In a rank: the functions of an answer, or why there are none. Nothing is measured yet.

    All ranks draw the same random numbers meanwhile: what a notebook makes once is alike on all of them. On a rank that
    it is not known to, nothing of it is executed, and each function is None.
    """
    if known_to is not None and int(os.environ["RANK"]) not in known_to:
        return (None,) * len(takes)
    attempts.watch()
    books.watch()
    try:
        with tampering.Definition() as definition, drawing(0):
            functions = define(pieces, takes)
    except CheckFailed as error:
        return error
    if definition.changed:
        return Refused(tampering.sentence(definition.changed))
    for function in functions.values():
        own_process.adopt_main(function)  # for objects of the answer's classes that it pickles
    return tuple(functions.values())


def define(pieces: list[Piece], takes: tuple[str, ...]) -> dict[str, Any]:
    """Execute the statements of an answer and return the functions that the exercise takes.

    A statement that needs a later one (cells out of order) waits for that; what its names do not tell is tried again
    after the others.

    Raises CheckFailed if a statement raises, with its cell and line.
    """
    space: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    flags = 0
    if any(piece.code.startswith("from __future__ import annotations") for piece in pieces):
        import __future__

        flags = __future__.annotations.compiler_flag
    show_in_tracebacks(pieces)
    order = _Waits(pieces)
    left, patient = pieces, True
    while left:
        ready, waiting = order.split(left, space) if patient else (left, [])
        failed: dict[Piece, BaseException] = {}
        for piece in ready:
            try:
                text = "\n" * (piece.line - 1) + piece.code
                code = compile(text, _file(piece.cell), "exec", flags, dont_inherit=True)
                exec(code, space)  # noqa: S102 - this is the process that exists to do so
            except NameError as error:
                failed[piece] = error
            except BaseException as error:
                raise _undefined(piece, error) from None
        if len(failed) == len(ready):
            if not waiting:
                raise _undefined(*next(iter(failed.items()))) from None
            patient = False
        left = [piece for piece in left if piece in failed or piece in waiting]
    missing = [name for name in takes if not callable(space.get(name))]
    if missing:
        raise Unfinished(f"`{missing[0]}` is no function in this notebook.")
    return {name: space[name] for name in takes}


class _Waits:
    """Which statements have to wait for others: a loop that fails in the middle would fill its table twice."""

    def __init__(self, pieces: list[Piece]) -> None:
        self._trees = {piece: ast.parse(piece.code).body[0] for piece in pieces}
        self._leads: dict[
            str, set[str]
        ] = {}  # by a name: those that what defines or changes it uses
        for tree in self._trees.values():
            for name in statements.bound(tree):
                self._leads.setdefault(name, set()).update(_free(tree))

    def split(self, left: list[Piece], space: dict[str, Any]) -> tuple[list[Piece], list[Piece]]:
        """(what can run one after the other, what waits): with a statement waits what uses what it changes."""
        ready: list[Piece] = []
        there, waits = set(space), list[Piece]()
        held = set[str]()
        for piece in left:
            tree = self._trees[piece]
            bound = statements.bound(tree)
            # a definition does nothing
            needed = set() if isinstance(tree, statements.DEFINED) else self._needed(tree) - bound
            if needed & held or (needed & self._leads.keys()) - there:
                waits.append(piece)
                held |= bound
            else:
                ready.append(piece)
                there |= bound
        return ready, waits

    def _needed(self, tree: ast.stmt) -> set[str]:
        found, left = set[str](), _free(tree)
        while left := left - found:
            found |= left
            left = set().union(*(self._leads.get(name, set()) for name in left))
        return found


def _free(tree: ast.stmt) -> set[str]:
    """The names that a statement uses and has not from itself."""
    own = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    if isinstance(tree, statements.DEFINED):
        names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
        own |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return statements.used(tree) - own


def show_in_tracebacks(pieces: list[Piece]) -> None:
    """Have tracebacks and stacks show an answer's lines."""
    lines: dict[str, list[str]] = {}
    for piece in pieces:
        cell = lines.setdefault(_file(piece.cell), [])
        first, code = piece.line - 1, piece.code.splitlines()
        cell += [""] * (first + len(code) - len(cell))
        cell[first : first + len(code)] = code
    for name, text in lines.items():
        whole = [line + "\n" for line in text]
        linecache.cache[name] = (sum(map(len, whole)), None, whole, name)


def _file(cell: int) -> str:
    return f"cell {cell} of your notebook"


def _undefined(piece: Piece, error: BaseException) -> CheckFailed:
    said = f"Cell {piece.cell} of the notebook, line {piece.line}: {type(error).__name__}: {error}"
    if isinstance(error, LookupError | NameError):
        said += f". {TAKEN}"
    return CheckFailed(said)
