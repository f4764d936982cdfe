"""exercises/ made from solutions/, with nbgrader's own preprocessors and no database.

A solution's notebook is the one source. Regions between ### BEGIN SOLUTION and ### END SOLUTION become a stub,
those between ### BEGIN HIDDEN TESTS and ### END HIDDEN TESTS go, outputs go; ids stay, so that a diff of
two generations shows what changed in the source.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import re
from dataclasses import dataclass
from pathlib import Path

from dtcourse.course import notebook as nbfile
from dtcourse.course import (
    places,
    without_grammars,  # noqa: F401  # before nbformat
)
from dtcourse.course.normalise import normalise

STUB = "# YOUR CODE HERE\nraise NotImplementedError()"
HELPERS = "# Functions of your own, if you want any, which those above may call."
_OUTSIDE = re.compile(r"(?ms)^### BEGIN SOLUTION$.*?^### END SOLUTION$")


class Edited(ValueError):
    """An exercise was changed by hand since it was generated; it is not overwritten."""


@dataclass
class Made:
    """What became of one exercise: "new", "changed" or "as before"."""

    path: Path
    what: str


def generate(solution: nbfile.Notebook) -> nbfile.Notebook:
    """The exercise of a solution, with its own hash in its metadata.

    Raises ValueError where nbgrader finds a region that does not end, or that stands in a cell without its metadata;
    and where a solution holds no region at all.
    """
    import nbformat

    logging.getLogger("traitlets").setLevel(logging.ERROR)
    from nbgrader.preprocessors import ClearHiddenTests, ClearOutput, ClearSolutions, LockCells
    from traitlets.config import Config

    source = copy.deepcopy(solution)
    for cell in source["cells"]:
        # nbgrader marks solution cells; a region in another cell would be handed out.
        if (
            cell["cell_type"] == "code"
            and "BEGIN SOLUTION" in cell["source"]
            and "nbgrader" not in cell["metadata"]
        ):
            raise ValueError(
                f"cell {cell.get('id')} has a solution region and is not marked as a solution cell"
            )
        # nbgrader would replace the whole cell, with the signature and docstring that the student needs.
        mark = cell["metadata"].get("nbgrader", {})
        if (
            cell["cell_type"] == "code"
            and mark.get("solution")
            and "BEGIN SOLUTION" not in cell["source"]
        ):
            raise ValueError(
                f"solution cell {cell.get('id')} holds no region between ### BEGIN SOLUTION and ### END SOLUTION"
            )
        # A stub at the top level would fail the cell, whatever the student has written above it.
        if cell["cell_type"] == "code" and mark.get("solution"):
            cell["source"] = _OUTSIDE.sub(HELPERS, cell["source"])
            if "BEGIN SOLUTION" not in cell["source"]:
                raise ValueError(
                    f"solution cell {cell.get('id')} holds no region inside a function or a class"
                )
    node = nbformat.from_dict(normalise(source))
    node.metadata.pop("dtcourse", None)
    config = Config()
    config.ClearSolutions.code_stub = {"python": STUB}
    resources: dict = {}
    try:
        for preprocessor in (ClearSolutions, ClearHiddenTests, ClearOutput, LockCells):
            node, resources = preprocessor(config=config).preprocess(node, resources)
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    if not any(STUB.splitlines()[-1] in cell["source"] for cell in node.cells):
        raise ValueError("it has no solution cell")
    exercise = normalise(nbfile.parse(nbformat.writes(node)))
    exercise["metadata"]["dtcourse"] = {"exercise": fingerprint(exercise)}
    return exercise


def fingerprint(exercise: nbfile.Notebook) -> str:
    """A hash of all cells' ids, kinds, text and nbgrader marks: it changes when somebody edits the exercise."""
    digest = hashlib.sha256()
    for cell in exercise["cells"]:
        mark = sorted(cell["metadata"].get("nbgrader", {}).items())
        digest.update(
            repr((cell.get("id"), cell["cell_type"], cell["source"].rstrip(), mark)).encode()
        )
    return digest.hexdigest()[:16]


def was_edited(exercise: nbfile.Notebook) -> bool:
    """Whether an exercise is no longer what was generated."""
    record = exercise["metadata"].get("dtcourse", {})
    return not isinstance(record, dict) or record.get("exercise") != fingerprint(exercise)


def make(
    solution: Path, target: Path | None = None, *, force: bool = False, dry: bool = False
) -> Made:
    """Generate one exercise beside its solution's folder; `dry` writes nothing.

    Raises Edited if the exercise there was changed by hand, unless `force` is given. Raises ValueError if the solution
    is out of form; the message names it.
    """
    target = target or solution.parent.parent / "exercises" / solution.name
    try:
        fresh = nbfile.dumps(generate(nbfile.read(solution)))
    except ValueError as error:
        raise ValueError(f"{solution.name}: {error}") from None
    if not target.exists():
        what = "new"
    elif target.read_text(encoding="utf-8") == fresh:
        what = "as before"
    else:
        what = "changed"
        if not force:
            try:
                edited = was_edited(nbfile.read(target))
            except nbfile.NotebookError:
                edited = True
            if edited:
                raise Edited(
                    f"{target.parent.name}/{target.name} was changed by hand, and is left "
                    f"as it is: take the change into solutions/{solution.name}, or give --force"
                )
    if what != "as before" and not dry:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(fresh, encoding="utf-8")
    return Made(target, what)


def orphans() -> list[Path]:
    """Exercises whose solution is gone."""
    solutions = set(places.notebooks("solutions"))
    return [
        path for number, path in places.notebooks("exercises").items() if number not in solutions
    ]
