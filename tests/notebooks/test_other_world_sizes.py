"""Every lesson and solution runs with another number of ranks than its own, by papermill.

A lesson runs as its reader has it: the copy that `dtcourse start` makes, in a my/ beside lessons/.

CI tries one other number on each, by the draw; `make test-all` tries all (tests/rotation.py). Executed copies stay in
build/executed/ for a look.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import nbformat
import papermill
import pytest

from dtcourse.course import notebook as nbfile
from dtcourse.course import workspace
from tests import rotation
from tests.notebooks.grammar import wrong_in

ROOT = Path(__file__).resolve().parent.parent.parent
LESSONS = ROOT / "lessons"
SIZES = (2, 3, 4)
ONE_OF_TWO = (1, 2)


def own_world_size(notebook: Path) -> int | None:
    """The WORLD_SIZE of the notebook's parameters cell; None where it has no such parameter."""
    # Not with papermill.inspect_notebook or nbformat, which are slow, and this runs at each collection.
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        if "parameters" in cell["metadata"].get("tags", []):
            for line in "".join(cell["source"]).splitlines():
                name, sign, value = line.partition("=")
                if sign and name.partition(":")[0].strip() == "WORLD_SIZE":
                    return int(value.partition("#")[0])
    return None


@cache  # a committed notebook is read once
def others(notebook: Path) -> list[int]:
    """Two numbers of ranks besides its own."""
    return [size for size in SIZES if size != own_world_size(notebook)][:2]


@cache
def plan() -> list:
    """Each notebook with each number of ranks but its own, which nbval tries."""
    notebooks = [
        path
        for folder in ("lessons", "solutions")
        for path in sorted((ROOT / folder).glob("*.ipynb"))
        if folder == "lessons" or own_world_size(path)
    ]
    return [
        pytest.param(
            notebook,
            size,
            id=f"{notebook.parent.name}/{notebook.stem}-{size}-ranks",
            # Neighbours, so that of two sizes one is drawn.
            marks=pytest.mark.stands_on(place=place + which, share=ONE_OF_TWO, lately=ONE_OF_TWO),
        )
        for place, notebook in enumerate(notebooks)
        for which, size in enumerate(others(notebook))
    ]


def readers_copy(lesson: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The copy of a lesson in the my/ of a course that is this one, but for its my/."""
    for path in ROOT.iterdir():
        if path.name != "my":
            (home / path.name).symlink_to(path)
    with monkeypatch.context() as here:
        here.setenv("DTCOURSE_HOME", str(home))
        copy = workspace.start(lesson.name.partition("-")[0])[0]
    assert copy.kind == "lesson" and copy.path.parent == home / "my"
    return copy.path


@pytest.mark.notebooks
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("notebook", "size"), plan())
def test_runs_with_another_number_of_ranks(
    notebook: Path, size: int, tmp_path: Path, monkeypatch
) -> None:
    executed = ROOT / "build" / "executed" / f"{notebook.stem}-{size}-ranks.ipynb"
    executed = executed.with_name(f"{notebook.parent.name}-{executed.name}")
    executed.parent.mkdir(parents=True, exist_ok=True)
    if notebook.parent.name == "lessons":
        notebook = readers_copy(notebook, tmp_path, monkeypatch)
    papermill.execute_notebook(
        notebook,
        executed,
        parameters={"WORLD_SIZE": size},
        kernel_name="python3",
        cwd=notebook.parent,
        progress_bar=False,
        start_timeout=120,
        execution_timeout=300,
    )
    assert wrong_in(nbfile.read(executed)) == []  # "1 steps", where two ranks take one


@pytest.mark.parametrize(
    "lesson", [pytest.param(path, id=path.stem) for path in sorted(LESSONS.glob("*.ipynb"))]
)
def test_a_lesson_has_its_number_of_ranks_as_a_parameter(lesson):
    assert own_world_size(lesson) is not None


@pytest.mark.parametrize("paths", [None, []])
def test_one_draw_tries_one_other_number_on_each_lesson_and_both_over_the_lessons(paths):
    for draw in ("0", "1"):
        tried = [
            one.values
            for one in plan()
            if rotation.is_tried(files=(), paths=paths, drawn=draw, **one.marks[0].kwargs)
        ]
        assert sorted(path for path, _ in tried) == sorted(LESSONS.glob("*.ipynb"))
        # Of each notebook's two, so that a lesson of two ranks, which is tried with 3 or 4, is as good as one of four.
        assert {others(path).index(size) for path, size in tried} == {0, 1}


def test_the_parameters_cell_is_read(tmp_path):
    cell = nbformat.v4.new_code_cell("DEVICE = None\nWORLD_SIZE: int = 4  # ranks\n")
    cell.metadata["tags"] = ["parameters"]
    path = tmp_path / "a.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    assert own_world_size(path) == 4
    del cell.metadata["tags"]
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    assert own_world_size(path) is None
