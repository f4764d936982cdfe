"""All launches of a notebook with every tool of dtcourse.debugging watching, none of them told what is wrong.

The notebook is executed as it is: a cell before its first one has launch send each function with the tools around it
(launch/around.py). What a tool says is told with the cell that launched:

    python -m dtcourse.course.watching lessons/06-data-parallel.ipynb     # none given: all lessons, which takes long

What is begun otherwise (torchrun in a cell, a script) is not watched, and there is no reference to compare with.
"""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from dtcourse.course import notebook as nbfile
from dtcourse.course import places
from dtcourse.course.declared_breaks import DECLARED
from dtcourse.debugging.gallery import WATCHES
from dtcourse.debugging.unasked import launched
from dtcourse.launch import around

WHERE = "where.json"
SLOWER = 5.0  # measured: 4 times, where a program does nothing but all-reduces of the course's own


@dataclass(frozen=True)
class Spoken:
    """What a tool said of a launch.

    cell:     the id of the cell that launched
    heading:  what it stands under
    expected: whether the lesson says that something goes wrong there: under "Break it", in expect_error, or in its
              text (declared_breaks.py)
    """

    cell: str
    heading: str
    tool: str
    sentence: str
    expected: bool

    def __str__(self) -> str:
        mark = "expected" if self.expected else "UNEXPECTED"
        return f"{mark} {self.cell} ({self.heading}) {self.tool}: {self.sentence}"


def begin(folder: str) -> None:
    """In the notebook's kernel: from here on each launch is watched, in a folder of its own below `folder`."""
    numbers = count()

    def wrap(function: Any, world_size: int) -> tuple[Any, dict[str, str]]:
        home = Path(folder) / f"launch-{next(numbers):03}"
        home.mkdir()
        where = {"cell": _running_cell(), "ranks": world_size}
        (home / WHERE).write_text(json.dumps(where))
        watching = launched.Watched(function, home, [*WATCHES])
        return watching, watching.variables()

    around.every_launch(wrap, SLOWER)


def _running_cell() -> int:
    """The number of the cell that runs, as In[] has it: execution_count is the next one's by then."""
    from IPython import get_ipython

    return len(get_ipython().history_manager.input_hist_raw) - 1


@dataclass(frozen=True)
class Watched:
    """What came of a notebook.

    launches: how many were watched
    spoken:   what the tools said, in the order of the launches
    failure:  of the cell that raised and ended it, or ""
    """

    launches: int
    spoken: list[Spoken]
    failure: str


def watch(path: Path) -> Watched:
    """Executes a notebook, which stays as it is, with all its launches watched."""
    from dtcourse.course.execute import CellFailed, execute

    notebook = copy.deepcopy(nbfile.read(path))
    folder = Path(tempfile.mkdtemp(prefix="watched-")).resolve()
    first = f"from dtcourse.course import watching\n\nwatching.begin({str(folder)!r})"
    cell = {"cell_type": "code", "id": "watching", "metadata": {}, "source": first}
    headed = nbfile.sections(notebook)
    notebook["cells"].insert(0, cell)
    failure = ""
    try:
        try:
            execute(notebook, path.parent)
        except CellFailed as failed:
            failure = str(failed)
        # In[1] is the cell above.
        cells = [(under, one) for under, one in headed if nbfile.code_cells({"cells": [one]})]
        homes = sorted(folder.iterdir())
        lesson = places.number_of(path.name) or ""
        spoken = [said for home in homes for said in _of_launch(home, lesson, cells)]
        return Watched(len(homes), list(dict.fromkeys(spoken)), failure)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _of_launch(home: Path, lesson: str, cells: list[tuple[str, nbfile.Cell]]) -> list[Spoken]:
    where = json.loads((home / WHERE).read_text())
    under, cell = cells[where["cell"] - 2]
    broken = "break it" in under.lower() or "expect_error(" in cell["source"]
    declared = DECLARED.get((lesson, cell["id"]), {})
    return [
        Spoken(cell["id"], under, tool, sentence, broken or tool in declared)
        for tool, sentence in launched.said(home, WATCHES, where["ranks"]).items()
    ]


def main() -> int:
    """Says what each tool says of each lesson's launches; 1 where one speaks that should not."""
    import sys

    from dtcourse.course import notebooks

    failed = False
    given: list[Path | str] = [*sys.argv[1:]]
    for path in notebooks.find(given or [places.home() / "lessons"]):
        found = watch(path)
        failed |= bool(found.failure) or not all(said.expected for said in found.spoken)
        lines = [f"{path.name}: {found.launches} launches watched", *map(str, found.spoken)]
        print("\n  ".join(lines), *found.failure.splitlines()[:8], sep="\n  ", flush=True)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
