"""To read is not to change: a lesson that was opened in JupyterLab and saved is what it was, to the byte."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import PATIENCE
from tests.course import rotation

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(420)]

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


def test_every_committed_notebook_is_as_jupyterlab_writes_it(lab):
    different = {}
    notebooks = sorted(path for kind in KINDS for path in (lab.home / kind).glob("*.ipynb"))
    own = (
        "tests/browser/",
        "dtcourse/course/jupyter/",
        "dtcourse/course/normalise.py",
        "requirements.lock",
    )
    waiting = [
        path
        for number, path in enumerate(notebooks)
        if rotation.waits(number, (*own, path.relative_to(lab.home).as_posix()))
    ]
    print(f"Not their turn, and unchanged: {sorted(path.name for path in waiting)}")
    for path in sorted({*notebooks} - {*waiting}):
        before = path.read_text(encoding="utf-8")
        name = path.relative_to(lab.home).as_posix()
        lab.open(name, kernel=False)
        lab.save()
        lab.close()
        if lines := changed(before, path):
            different[name] = lines[:8]
    assert not different
