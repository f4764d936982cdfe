"""What a student meets who types `dtcourse lab`, or `make lab`, which is the same: seen in a fresh browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtcourse.course import notebook as nbfile

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(420),
    pytest.mark.stands_on(
        "tests/browser/",
        "lessons/06-data-parallel.ipynb",
        "dtcourse/cli/",
        "dtcourse/course/jupyter/",
        "dtcourse/course/lab.py",
        "dtcourse/course/workspace.py",
    ),
]

NUMBER, NAME = "06", "data-parallel"
LESSON = f"{NUMBER}-{NAME}"
MENUS = (
    "() => [...document.querySelectorAll('.lm-MenuBar-itemLabel')].map(item => item.textContent)"
)
NBGRADER = """async () => {
    await window.jupyterapp.restored;
    return window.jupyterapp.commands.listCommands().filter(name => name.startsWith('nbgrader'));
}"""
# Each line of the outputs on the page that goes on below, with the two letters that it was broken between.
BROKEN = """() => {
    const broken = [];
    let looked_at = 0;
    for (const block of document.querySelectorAll('.jp-OutputArea-output pre')) {
        const texts = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
        let before = '', bottom = Infinity;
        while (texts.nextNode())
            for (let i = 0; i < texts.currentNode.data.length; i++) {
                const letter = texts.currentNode.data[i];
                const range = document.createRange();
                range.setStart(texts.currentNode, i);
                range.setEnd(texts.currentNode, i + 1);
                const place = range.getBoundingClientRect();
                looked_at += 1;
                if (place.width && before !== '\\n' && place.top >= bottom) broken.push(before + letter);
                if (place.width || letter === '\\n') bottom = letter === '\\n' ? Infinity : place.bottom;
                before = letter;
            }
    }
    return [looked_at, broken];
}"""


@pytest.fixture(scope="module")
def course(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of lesson 06 with its exercises."""
    home = tmp_path_factory.mktemp("course")
    for kind in ("lessons", "exercises"):
        (home / kind).mkdir()
        shutil.copy(root / kind / f"{LESSON}.ipynb", home / kind)
    return home


@pytest.fixture(scope="module")
def lab(jupyterlab: Callable[..., Any], course: Path) -> Any:
    """`dtcourse lab 06`, in a window as wide as many laptops'."""
    return jupyterlab(course=course, words=("06",), size=(1440, 900))


def test_the_students_own_copies_are_there_side_by_side(lab):
    lab.screenshot("dtcourse-lab.png")
    mine = lab.home / "my"
    assert sorted(path.name for path in mine.iterdir() if path.is_file()) == [
        f"{NUMBER}-exercises-{NAME}.ipynb",
        f"{NUMBER}-lesson-{NAME}.ipynb",
    ]
    cells = len(nbfile.read(lab.home / "lessons" / f"{LESSON}.ipynb")["cells"])
    assert lab.open(f"my/{NUMBER}-lesson-{NAME}.ipynb") == cells
    lab.screenshot("dtcourse-lab-lesson.png")
    assert not any(cell["outputs"] for cell in lab.current()["cells"])
    lab.close()


def test_nobody_asks_about_news_and_nothing_is_fetched(lab, until):
    """The question comes with the first page, a moment after JupyterLab is ready."""
    fetch = "name => window.jupyterapp.serviceManager.settings.fetch(name)"
    setting = lab.page.evaluate(fetch, "@jupyterlab/apputils-extension:notification")
    defaults = {name: one["default"] for name, one in setting["schema"]["properties"].items()}
    assert defaults["fetchNews"] == "false" and defaults["checkForUpdates"] is False
    lab.page.wait_for_timeout(3000)
    assert "Jupyter news" not in lab.page.inner_text("body")


def test_students_see_nothing_of_nbgrader(lab):
    menus = lab.page.evaluate(MENUS)
    assert "File" in menus and "Nbgrader" not in menus
    assert lab.page.evaluate(NBGRADER) == []
    assert "Create Assignment" not in lab.page.inner_text("body")


@pytest.mark.parametrize("width", [1440, 1280])
def test_no_line_of_code_or_text_is_broken_inside_a_word(lab, width):
    lesson = nbfile.read(lab.home / "lessons" / f"{LESSON}.ipynb")
    shown = [c["id"] for c in nbfile.code_cells(lesson) if "show(" in c["source"]]
    lab.page.set_viewport_size({"width": width, "height": 900})
    lab.open(f"lessons/{LESSON}.ipynb", kernel=False)
    letters, broken = 0, []
    for number, cell in enumerate(shown):
        lab.show(cell)
        lab.page.wait_for_timeout(500)
        lab.screenshot(f"dtcourse-lab-show-{width}-{number}.png")
        looked_at, found = lab.page.evaluate(BROKEN)
        letters, broken = letters + looked_at, broken + found
    lab.close()
    assert letters > 1000
    assert [pair for pair in broken if " " not in pair] == []


def test_an_instructor_has_nbgraders_menus(jupyterlab, course):
    lab = jupyterlab(course=course, words=("--instructor", "06"))
    assert lab.page.evaluate(NBGRADER)
    assert "Nbgrader" in lab.page.evaluate(MENUS)
    lab.screenshot("dtcourse-lab-instructor.png")
