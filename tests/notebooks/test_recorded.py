"""Where there is no Slurm, lesson 26 shows what was recorded: it says so, and shows what the committed run shows."""

from __future__ import annotations

import json
import re

import papermill
import pytest

from dtcourse.course import notebook as nbfile
from dtcourse.course import places
from dtcourse.course.recorded import VARIABLE, Recorded

LESSON = places.home() / "lessons" / "26-clusters.ipynb"


def text_of(cell) -> str:
    return "\n".join(
        text
        for output in cell["outputs"]
        for kind, text in nbfile.output_text(output)
        if kind in ("stream", "text/plain")
    )


@pytest.mark.notebooks
@pytest.mark.slow
def test_a_lesson_without_slurm_says_so_and_shows_what_slurm_would(tmp_path):
    executed = tmp_path / "executed.ipynb"
    papermill.execute_notebook(
        LESSON, executed, {"SLURM": False}, kernel_name="python3", progress_bar=False
    )
    here = {cell.get("id"): cell for cell in nbfile.read(executed)["cells"]}
    said = 0
    for cell in nbfile.read(LESSON)["cells"]:
        if cell["cell_type"] != "code" or "nbval-ignore-output" in nbfile.tags(cell):
            continue
        shown = text_of(here[cell["id"]])
        without = re.sub(r"^Not run: .*\n?|^What follows was recorded .*\n?", "", shown, flags=re.M)
        said += shown != without
        assert without.split() == text_of(cell).split(), cell["id"]
    assert said >= 8


def test_what_was_found_is_written_down_and_read_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(places, "home", lambda: tmp_path)
    (tmp_path / "lessons").mkdir()
    live, away = Recorded("99", None), Recorded("99", "there is no Slurm here")

    def squares(n):
        """The first squares."""
        return {"squares": tuple(i * i for i in range(n))}

    assert live("squares", squares, 3) == {"squares": [0, 1, 4]}, "as JSON gives it back"
    assert not live.file.exists(), "only where it is asked for"
    monkeypatch.setenv(VARIABLE, "1")
    live("squares", squares, 3)
    live("others", squares, 1)
    assert set(json.loads(live.file.read_text())) == {"squares", "others"}
    assert capsys.readouterr().out == ""
    assert away("squares", squares, 5) == {"squares": [0, 1, 4]}
    out = capsys.readouterr().out
    assert "Not run: there is no Slurm here.\n" in out
    assert re.search(r"recorded on 20\d\d-\d\d-\d\d, by: The first squares\.\n", out)
    with pytest.raises(KeyError):
        away("never", squares, 1)
