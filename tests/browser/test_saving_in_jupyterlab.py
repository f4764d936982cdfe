"""To read is not to change: a lesson that was opened in JupyterLab and saved is what it was, to the byte."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import PATIENCE

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(420)]

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("lessons", "solutions", "exercises")


@pytest.fixture(scope="module")
def lab(jupyterlab: Callable[..., Any], root: Path, tmp_path_factory: Any) -> Any:
    """`dtcourse lab` on a copy of the course."""
    course = tmp_path_factory.mktemp("course")
    for kind in KINDS:
        shutil.copytree(root / kind, course / kind)
    return jupyterlab(course=course)


def changed(before: str, path: Path) -> list[str]:
    """The lines that are not what they were, cut short: one of them may be a picture."""
    after = path.read_text(encoding="utf-8")
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return [line[:100] for line in lines][2:] or ([] if before == after else ["the last newline"])


def test_a_lesson_with_a_kernel_saved_by_keyboard_is_as_it_was(lab, until):
    """The kernel tells its version of Python as soon as it is there, and JupyterLab would write it down."""
    lesson = "lessons/03-collectives.ipynb"
    before = (lab.home / lesson).read_text(encoding="utf-8")
    lab.open(lesson)
    until(
        lambda: "version" in lab.current()["language"], PATIENCE, "the kernel to tell its version"
    )
    ids = [cell["id"] for cell in lab.current()["cells"]]
    lab.save_by_keyboard()
    assert changed(before, lab.home / lesson) == []
    until(lambda: not lab.current()["dirty"], 20, "the page to know that it is saved")
    assert [cell["id"] for cell in lab.current()["cells"]] == ids
    lab.close()


def by_lesson() -> list:
    """Each lesson's number; all but the first take turns."""
    own = ("tests/browser/", "dtcourse/course/jupyter/", "dtcourse/course/normalise.py")
    numbers = sorted(path.name.partition("-")[0] for path in (ROOT / "lessons").glob("*.ipynb"))
    return [
        pytest.param(
            number,
            marks=pytest.mark.stands_on(*own, *(f"{kind}/{number}-" for kind in KINDS), place=place)
            if place
            else (),
        )
        for place, number in enumerate(numbers)
    ]


@pytest.mark.parametrize("number", by_lesson())
def test_a_lessons_committed_notebooks_are_as_jupyterlab_writes_them(lab, number):
    different = {}
    for kind in KINDS:
        [path] = (lab.home / kind).glob(f"{number}-*.ipynb")
        before = path.read_text(encoding="utf-8")
        name = path.relative_to(lab.home).as_posix()
        lab.open(name, kernel=False)
        lab.save()
        lab.close()
        if lines := changed(before, path):
            different[name] = lines[:8]
    assert not different
