"""Bring committed notebooks into form: `dtcourse notebooks`, and what `make notebooks` calls."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dtcourse.course import notebook as nbfile
from dtcourse.course import places, shape, topics
from dtcourse.course.normalise import normalise


@dataclass
class Outcome:
    """What was done to one notebook, or found in it."""

    path: Path
    changed: bool = False
    seconds: float | None = None
    faults: list[str] = field(default_factory=list)


def find(paths: Iterable[Path | str] = ()) -> list[Path]:
    """The notebooks among these files and folders; by default all lessons, exercises and solutions.

    Raises ValueError for a path that is not there, or no notebook.
    """
    home = places.home()
    wanted = [Path(path) for path in paths] or [
        home / kind for kind in ("lessons", "exercises", "solutions")
    ]
    found: list[Path] = []
    for path in wanted:
        if path.is_dir():
            found += sorted(path.glob("*.ipynb"))
        elif path.is_file() and path.suffix == ".ipynb":
            found.append(path)
        elif path in [home / kind for kind in ("lessons", "exercises", "solutions")]:
            continue
        else:
            raise ValueError(f"{path}: no such notebook or folder")
    return found


def faults(path: Path) -> list[str]:
    """Everything that keeps a committed notebook out of form and out of shape."""
    try:
        notebook = nbfile.read(path)
    except nbfile.NotebookError as error:
        return [str(error)]
    found = []
    if nbfile.dumps(normalise(copy.deepcopy(notebook))) != path.read_text(encoding="utf-8"):
        found.append("it is not in the one form: run `dtcourse notebooks` on it")
    kind, number = path.parent.name, places.number_of(path.name)
    if kind == "lessons" and number:
        found += shape.lesson_faults(notebook, number, topics.of_lesson(number))
    elif kind == "solutions":
        found += shape.common_faults(notebook)
    return found


def treat(
    path: Path,
    *,
    execute: bool = False,
    check: bool = False,
    on_cell: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Normalise one notebook in place, executed first if asked; with `check`, only say what is wrong.

    Raises dtcourse.course.execute.CellFailed if a cell fails; the file is then left as it was.
    """
    outcome = Outcome(path)
    if not check:
        before = path.read_text(encoding="utf-8")
        notebook = nbfile.read(path)
        if execute and path.parent.name != "exercises":
            from dtcourse.course.execute import execute as run

            outcome.seconds = run(notebook, path.parent, on_cell=on_cell)
        normalise(notebook, seconds=outcome.seconds)
        outcome.changed = nbfile.dumps(notebook) != before
        if outcome.changed:
            nbfile.write(notebook, path)
    outcome.faults = faults(path)
    return outcome


def main() -> int:
    """`python -m dtcourse.course.notebooks [PATHS]`: execute and normalise; 1 if a cell failed."""
    import sys

    from dtcourse.course.execute import CellFailed

    failed = False
    for path in find(sys.argv[1:]):
        try:
            outcome = treat(path, execute=True)
        except (CellFailed, nbfile.NotebookError) as error:
            print(f"{path.name}: {error}")
            failed = True
            continue
        took = f" in {outcome.seconds:.1f} s" if outcome.seconds is not None else ""
        print(f"{path.name}: {'changed' if outcome.changed else 'as before'}{took}")
        for fault in outcome.faults:
            print(f"  - {fault}")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
