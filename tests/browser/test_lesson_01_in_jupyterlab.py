"""Lesson 01 as a person sees it: opened in JupyterLab in a headless Chromium, all cells run, a control moved.

Screenshots go to build/browser/, for a look at both themes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import PATIENCE

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(420),
    pytest.mark.stands_on("tests/browser/", "lessons/01-why-distributed.ipynb", "dtcourse/plots/"),
]

LESSON = "01-why-distributed.ipynb"
PICTURE = """id => {
    const cells = window.jupyterapp.shell.currentWidget.content.model.cells;
    for (let i = 0; i < cells.length; i++)
        if (cells.get(i).id === id)
            return cells.get(i).outputs.toJSON().map(o => (o.data || {})['image/png'] || '').join('');
}"""


def test_every_cell_runs_and_a_control_changes_the_picture(
    jupyterlab: Callable[..., Any], until: Callable[..., None], root: Path, tmp_path: Path
) -> None:
    shutil.copy(root / "lessons" / LESSON, tmp_path / LESSON)
    lab = jupyterlab(folder=tmp_path)
    page = lab.page
    written = json.loads((root / "lessons" / LESSON).read_text(encoding="utf-8"))
    code = [
        c for c in written["cells"] if c["cell_type"] == "code" and "".join(c["source"]).strip()
    ]

    assert lab.open(LESSON) == len(written["cells"])
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    assert not any(cell["count"] or cell["outputs"] for cell in lab.current()["cells"])
    until(lambda: lab.current()["status"] == "idle", PATIENCE, "the kernel to be idle")
    lab.do("notebook:run-all-cells")

    def finished() -> bool:
        now = lab.current()
        failed = [
            o for cell in now["cells"] for o in cell["outputs"] if o["output_type"] == "error"
        ]
        assert not failed, f"a cell failed: {failed[0]['ename']}: {failed[0]['evalue']}"
        return now["status"] == "idle" and all(cell["count"] for cell in now["cells"])

    until(finished, 300, "all cells to run")
    cells = lab.current()["cells"]
    assert [cell["count"] for cell in cells] == list(range(1, len(code) + 1))
    assert [cell["id"] for cell in cells] == [cell["id"] for cell in code]
    with_output = {cell["id"] for cell in code if cell["outputs"]}
    assert {cell["id"] for cell in cells if cell["outputs"]} == with_output

    lab.show("memory-wall")
    slider = page.locator(
        ".jp-Cell.jp-mod-active .noUi-handle, .jp-Cell.jp-mod-active [role=slider]"
    ).first
    slider.wait_for()
    before = page.evaluate(PICTURE, "memory-wall")
    assert before, "the cell of the memory wall shows no picture"
    lab.screenshot("lesson-01-light.png")
    slider.focus()
    page.keyboard.press("End")  # the largest micro-batch

    def redrawn() -> bool:
        idle = lab.current()["status"] == "idle"
        return idle and page.evaluate(PICTURE, "memory-wall") not in ("", before)

    until(redrawn, PATIENCE, "the picture to change")
    lab.screenshot("lesson-01-light-moved.png")

    lab.do("apputils:change-theme", {"theme": "JupyterLab Dark"})
    page.wait_for_selector("body[data-jp-theme-light=false]", state="attached")
    lab.show("strong-table")
    page.wait_for_timeout(500)
    lab.screenshot("lesson-01-dark.png")
