"""The explorer of schedules as a person sees it: in JupyterLab in a headless Chromium, buttons pressed,
a control moved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.browser.conftest import PATIENCE

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(420),
    pytest.mark.stands_on("tests/browser/", "dtcourse/plots/", "dtcourse/pipeline_parallel/"),
]

CELL = """from dtcourse import plots
from dtcourse.pipeline_parallel import explore

plots.schedule_explorer(explore.play, explore.PRESETS, **explore.CONTROLS)"""


def test_presets_and_controls_change_the_picture_and_the_impossible_is_said(
    jupyterlab: Callable[..., Any], until: Callable[..., None], tmp_path: Path
) -> None:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(CELL)],
        metadata={"kernelspec": kernel},  # else JupyterLab asks
    )
    nbformat.write(notebook, tmp_path / "explorer.ipynb")
    lab = jupyterlab(folder=tmp_path)
    page = lab.page
    lab.open("explorer.ipynb")
    until(lambda: lab.current()["status"] == "idle", PATIENCE, "the kernel to be idle")
    lab.do("notebook:run-all-cells")

    def picture() -> str:
        outputs = lab.current()["cells"][0]["outputs"]
        assert not [one for one in outputs if one["output_type"] == "error"], outputs
        return "".join(one.get("data", {}).get("image/png", "") for one in outputs)

    def press_until_redrawn(act: Callable[[], Any], what: str) -> None:
        before = picture()
        act()
        until(lambda: picture() not in ("", before), PATIENCE, what)

    until(picture, 120, "the presets' picture")
    lab.screenshot("schedules-presets.png")
    press_until_redrawn(
        lambda: page.get_by_role("button", name="zero bubble").click(), "the preset's picture"
    )
    lab.screenshot("schedules-zero-bubble.png")
    chosen = page.locator("select").filter(has_text="ZB-V")
    assert chosen.input_value() == "ZB-H1"
    press_until_redrawn(lambda: chosen.select_option("ZB-V"), "another schedule's picture")
    before = picture()
    limit = page.locator("select").filter(has_text="24")
    assert limit.input_value() == "none"
    limit.select_option("2")
    page.get_by_text("stores 4 at once, of 2 that it may").wait_for()
    assert picture() == before
    lab.screenshot("schedules-impossible.png")
