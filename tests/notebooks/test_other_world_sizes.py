"""Every lesson and solution runs with another number of ranks than its own, by papermill.

A lesson runs as its reader has it: the copy that `dtcourse start` makes, in a my/ beside lessons/.

One other number for each notebook and change keeps CI in its budget. Which one rotates with the
commit, and from notebook to notebook, so that all of them come up. A notebook that has not changed
lately, nor a package that few but it import, takes turns with the others: one of three is run (nbval
runs each with its own number). DTCOURSE_WORLD_SIZES=2,3 tries both on every notebook;
DTCOURSE_WORLD_SIZES=all tries 2, 3 and 4 (`make test-all`).
Executed copies stay in build/executed/ for a look.
"""

from __future__ import annotations

import collections
import os
import re
import subprocess
from pathlib import Path

import nbformat
import papermill
import pytest

from dtcourse.course import notebook as nbfile
from dtcourse.course import workspace
from tests.notebooks.grammar import wrong_in

ROOT = Path(__file__).resolve().parent.parent.parent
LESSONS = ROOT / "lessons"
ALTERNATES = (2, 3)
EVERY = (2, 3, 4)


def own_world_size(notebook: Path) -> int | None:
    """The WORLD_SIZE of the notebook's parameters cell; None where it has no such parameter."""
    # Read here, not with papermill.inspect_notebook, which is slow and runs at each collection.
    for cell in nbformat.read(notebook, as_version=4).cells:
        if "parameters" in cell.metadata.get("tags", []):
            names: dict[str, object] = {}
            for line in cell.source.splitlines():
                name, sign, value = line.partition("=")
                if sign and name.partition(":")[0].strip() == "WORLD_SIZE":
                    names["WORLD_SIZE"] = int(value.partition("#")[0])
            return names.get("WORLD_SIZE")
    return None


def world_sizes(own: int | None, position: int, wish: str, commit: str) -> list[int]:
    """The numbers of ranks to try on one notebook, never its own, which nbval has run already."""
    if wish == "all":
        candidates = EVERY
    elif wish:
        candidates = tuple(int(number) for number in wish.split(","))
    else:
        candidates = tuple(size for size in ALTERNATES if size != own)
        candidates = (candidates[(int(commit[:8] or "0", 16) + position) % len(candidates)],)
    return [size for size in candidates if size != own]


def commit_hash() -> str:
    """Of the checkout's last commit; empty outside git."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


IMPORTED = re.compile(
    r"^\s*(?:from|import) dtcourse\.(\w+)|^\s*from dtcourse import ([\w, ]+)", re.M
)


def stands_on(notebooks: list[Path]) -> dict[Path, list[str]]:
    """For each notebook its own file, its scripts, and the course's packages that at most half of all import.

    What nearly all import (launch, emulation, models) has tests of its own; a lesson's technique is the lesson's.
    """
    packages: dict[Path, set[str]] = {}
    for path in notebooks:
        code = "\n".join(cell["source"] for cell in nbfile.code_cells(nbfile.read(path)))
        names = {
            name.strip()
            for one, several in IMPORTED.findall(code)
            for name in (one or several).split(",")
        }
        packages[path] = {name for name in names if (ROOT / "dtcourse" / name).is_dir()}
    count = collections.Counter(name for names in packages.values() for name in names)
    return {
        path: [
            path.relative_to(ROOT).as_posix(),
            f"lessons/scripts/{path.name[:2]}_",
            *(f"dtcourse/{name}/" for name in sorted(names) if count[name] <= len(notebooks) / 2),
        ]
        for path, names in packages.items()
    }


def plan() -> list:
    """Each (notebook, number of ranks) of this run."""
    wish, commit = os.environ.get("DTCOURSE_WORLD_SIZES", ""), commit_hash()
    notebooks = [
        path
        for folder in ("lessons", "solutions")
        for path in sorted((ROOT / folder).glob("*.ipynb"))
    ]
    own = stands_on([path for path in notebooks if path.parent == LESSONS])
    return [
        pytest.param(
            notebook,
            size,
            id=f"{notebook.parent.name}/{notebook.stem}-{size}-ranks",
            marks=pytest.mark.stands_on(*own[notebook]) if notebook in own and not wish else (),
        )
        for position, notebook in enumerate(notebooks)
        for size in world_sizes(own_world_size(notebook), position, wish, commit)
    ]


def readers_copy(lesson: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The copy of a lesson in the my/ of a course that is this one, but for its my/."""
    for path in ROOT.iterdir():
        if path.name != "my":
            (home / path.name).symlink_to(path)
    with monkeypatch.context() as here:
        here.setenv("DTCOURSE_HOME", str(home))
        copy = workspace.start(lesson.name[:2])[0]
    assert copy.kind == "lesson" and copy.path.parent == home / "my"
    return copy.path


@pytest.mark.notebooks
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("notebook", "size"), plan())
def test_runs_with_another_number_of_ranks(
    notebook: Path, size: int, tmp_path: Path, monkeypatch
) -> None:
    own = own_world_size(notebook)
    if own is None and notebook.parent.name == "solutions":
        pytest.skip(f"{notebook.name} has no parameter WORLD_SIZE, and nbval runs it as it is")
    assert own is not None, f"{notebook.name} has no parameters cell with WORLD_SIZE (design.md, 4)"

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


@pytest.mark.parametrize("own", [1, 2, 3, 4, None])
def test_the_rotation_never_repeats_a_notebooks_own_size_and_reaches_all_others(own):
    seen = {
        size
        for commit in (f"{number:08x}" for number in range(6))
        for size in world_sizes(own, 5, "", commit)
    }
    assert seen == {2, 3} - {own}


def test_one_change_tries_one_size_on_each_notebook_and_both_over_the_notebooks():
    sizes = [world_sizes(4, position, "", "0123abcd") for position in range(4)]
    assert [len(each) for each in sizes] == [1, 1, 1, 1]
    assert {size for each in sizes for size in each} == {2, 3}


def test_a_lesson_stands_on_its_technique_and_not_on_what_all_import():
    found = {path.name[:2]: own for path, own in stands_on(sorted(LESSONS.glob("*.ipynb"))).items()}
    assert "dtcourse/sharding/" in found["16"] and "lessons/16-zero-and-fsdp.ipynb" in found["16"]
    assert "dtcourse/sharding/" not in found["08"]
    assert "lessons/scripts/06_" in found["06"] and list(LESSONS.glob("scripts/06_*"))
    assert not any("dtcourse/launch/" in own for own in found.values())


def test_a_wish_overrides_the_rotation():
    assert world_sizes(4, 0, "2,3", "ffffffff") == [2, 3]
    assert world_sizes(2, 0, "2,3", "ffffffff") == [3]
    assert world_sizes(4, 0, "all", "") == [2, 3]


def test_the_parameters_cell_is_read(tmp_path):
    cell = nbformat.v4.new_code_cell("DEVICE = None\nWORLD_SIZE: int = 4  # ranks\n")
    cell.metadata["tags"] = ["parameters"]
    path = tmp_path / "a.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    assert own_world_size(path) == 4
    del cell.metadata["tags"]
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    assert own_world_size(path) is None
