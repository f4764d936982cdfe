"""Controls over a picture: what they start at, what they do, and what a saved notebook keeps of them."""

import base64
import os
import subprocess
import sys

import ipywidgets
import nbformat
import pytest
from nbclient import NotebookClient

from dtcourse import plots
from dtcourse.events import Event, Timeline

TIMELINE = Timeline(
    Event("work", kind, rank, 5 + i, 6 + i)
    for rank in range(2)
    for i, kind in enumerate(("compute", "communication"))
)


def draw(ranks: int = 4, serial: float = 0.1, law: str = "Amdahl", grid: bool = True):
    return plots.bars({f"{law} {ranks} {serial} {grid}": 1.0})


CONTROLS = {"ranks": (1, 64), "serial": (0.0, 1.0), "law": ["Amdahl", "Gustafson"], "grid": True}


def test_controls_start_at_the_defaults_of_draw():
    panel = plots.interactive(draw, **CONTROLS)
    assert panel.values == {"ranks": 4, "serial": 0.1, "law": "Amdahl", "grid": True}
    assert "Amdahl 4 0.1 True" in panel.still.description


def test_controls_without_a_default_start_in_the_middle_or_at_the_first():
    panel = plots.interactive(lambda **values: values, a=(0, 10), b=(1.0, 2.0, 0.5), c={"x": 7}, d=[3, 4])  # fmt: skip
    assert panel.values == {"a": 5, "b": 1.5, "c": 7, "d": 3}


def test_each_kind_of_control_is_its_widget():
    panel = plots.interactive(draw, **CONTROLS)
    panel._panel()
    assert isinstance(panel.widgets["ranks"], ipywidgets.IntSlider)
    assert isinstance(panel.widgets["serial"], ipywidgets.FloatSlider)
    assert isinstance(panel.widgets["law"], ipywidgets.Dropdown)
    assert isinstance(panel.widgets["grid"], ipywidgets.Checkbox)
    own = ipywidgets.IntText(value=3)
    assert plots.interactive(draw, ranks=own).values == {"ranks": 3}


def test_moving_a_control_redraws_and_a_mistake_keeps_the_last_picture():
    shown = []

    def half(n: int = 2) -> int:
        if n % 2:
            raise ValueError(f"{n} is <odd>")
        return n // 2

    panel = plots.interactive(half, n=(0, 10))
    panel._panel()
    panel._handle = type("Handle", (), {"update": staticmethod(shown.append)})
    panel.widgets["n"].value = 8
    panel.widgets["n"].value = 9
    assert shown == [4]
    assert "9 is &lt;odd>" in panel._error.value
    panel.widgets["n"].value = 10
    assert (shown, panel._error.value) == ([4, 5], "")
    assert panel.update(n=6) == 3
    assert shown == [4, 5, 3]


def test_a_preset_sets_all_controls_and_draws_once():
    shown = []
    presets = {"big": {"a": 9, "c": "y"}, "b alone": {"b": 7}}
    panel = plots.Interactive(
        lambda a=1, b=2, c="x": (a, b, c), {"a": (0, 10), "b": (0, 10), "c": ["x", "y"]}, presets=presets
    )  # fmt: skip
    buttons = panel._panel().children[0].children
    panel._handle = type("Handle", (), {"update": staticmethod(shown.append)})
    assert [one.description for one in buttons] == ["big", "b alone"]
    buttons[0].click()
    buttons[1].click()  # the others go back to where they started
    assert shown == [(9, 2, "y"), (1, 7, "x")]
    panel.widgets["a"].value = 3
    assert shown[2:] == [(3, 7, "x")]
    assert "Presets: big, b alone." in repr(panel)
    with pytest.raises(ValueError, match="preset 'big' sets 'z'; the controls are ranks"):
        plots.Interactive(draw, {"ranks": (1, 9)}, presets={"big": {"z": 1}})


def test_play_and_slider_are_linked():
    states = [[["a"], [None]], [["a"], ["a"]]]
    stepper = plots.message_stepper([plots.Message(0, 0, 1, chunk=0)], states)
    box = stepper._panel().children[0].children
    assert isinstance(box[0], ipywidgets.Play)
    assert (box[0].min, box[0].max) == (box[1].min, box[1].max) == (0, 1)
    # Without a kernel, all steps are seen.
    assert len([ax for ax in stepper.still.axes if ax.get_title(loc="left")]) == 2
    assert "start" in [ax.get_title(loc="left") for ax in stepper.update(step=0).axes]


def test_timeline_explorer_zooms():
    explorer = plots.timeline_explorer(TIMELINE)
    assert explorer.values == {"zoom": 1, "start_percent": 0, "rank": "all", "kind": "all"}
    ax = explorer.update(zoom=4, start_percent=99).axes[0]
    assert ax.get_xlabel() == "time (ms)"
    assert ax.get_xlim() == pytest.approx((1500, 2000), abs=10)  # never beyond the end
    assert [t.get_text() for t in explorer.update(rank=1).axes[0].get_yticklabels()] == ["rank 1"]
    assert explorer.update(kind="compute", rank="all", zoom=1, start_percent=0)


def test_mistakes():
    with pytest.raises(ValueError, match="at least one control"):
        plots.interactive(draw)
    with pytest.raises(ValueError, match="control 'rank', and draw takes ranks"):
        plots.interactive(draw, rank=(1, 2))
    with pytest.raises(ValueError, match=r"ranks=4 is outside the slider \(8, 9\)"):
        plots.interactive(draw, ranks=(8, 9))
    with pytest.raises(ValueError, match="low < high"):
        plots.interactive(draw, ranks=(8, 8))
    with pytest.raises(ValueError, match="'Amdahl' is not one of"):
        plots.interactive(draw, law=["Gustafson"])
    with pytest.raises(ValueError, match="got 'Amdahl'"):
        plots.interactive(draw, law="Amdahl")
    with pytest.raises(ValueError, match="control law offers None"):
        plots.interactive(lambda law=None: law, law={"none": None, "Amdahl": 1})
    with pytest.raises(ValueError, match="the controls are ranks; got 'n'"):
        plots.interactive(draw, ranks=(1, 9)).update(n=3)
    with pytest.raises(ValueError, match=r"record=True"):
        plots.timeline_explorer(Timeline())


# --- in a real kernel

CELLS = [
    "from dtcourse import plots\nfrom dtcourse.events import Event, Timeline\nimport matplotlib.pyplot as plt",
    "Timeline([Event('work', 'compute', r, 1.0, 1.234567) for r in range(3)])",
    "plots.bars({'a': 1.0}, title='One bar')",
    "def draw(n: int = 2):\n    return plots.bars({'a': float(n)}, title='A bar')\n\npanel = "
    "plots.interactive(draw, n=(0, 9))\npanel",
    "_ = panel.update(n=7)",
    "plots.table([{'a': 1}])",
    "fig, ax = plt.subplots()\n_ = ax.plot([1, 2])",
    "from dtcourse.pipeline_parallel.schedules import gpipe\ngpipe(2, 3)",
    "from dtcourse.pipeline_parallel.simulate import Times, simulate\nsimulate(gpipe(2, 3), Times(transfer=0.5))",
]


@pytest.fixture(scope="module")
def executed():
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]

    notebook = nbformat.v4.new_notebook(
        cells=cells,
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
        },
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MPLBACKEND", raising=False)  # the tests' own; a kernel chooses the inline one
        NotebookClient(notebook, timeout=240).execute()
    return notebook


def data(cell) -> list[dict]:
    return [output.data for output in cell.outputs if "data" in output]


def png_size(bundle) -> tuple[int, int]:
    png = base64.b64decode(bundle["image/png"])
    return int.from_bytes(png[16:20]), int.from_bytes(png[20:24])


@pytest.mark.slow
def test_a_timeline_draws_itself(executed):
    (bundle,) = data(executed.cells[1])
    assert bundle["text/plain"] == "Timeline of 3 ranks"  # nothing measured
    assert png_size(bundle)[0] == 1280


@pytest.mark.slow
def test_a_picture_shows_once_at_its_own_size(executed):
    (output,) = executed.cells[2].outputs
    assert output.data["text/plain"] == "<Picture: One bar>"
    meta = output.metadata["image/png"]
    assert (meta["width"], meta["alt"]) == (800, "One bar")
    assert png_size(output.data)[0] == 1280


@pytest.mark.slow
def test_an_interactive_picture_is_saved_with_a_still_and_a_sentence(executed):
    controls, picture = data(executed.cells[3])
    assert controls["text/plain"] == "Controls: n (0 to 9). Run this cell to move them."
    assert set(controls) == {"text/plain", "application/vnd.jupyter.widget-view+json"}
    assert set(picture) == {"text/plain", "image/png"}
    # The next cell moved the control: the picture above was redrawn in place, and no new one came.
    assert not data(executed.cells[4])
    still = plots.bars({"a": 2.0}, title="A bar").png()
    moved = plots.bars({"a": 7.0}, title="A bar").png()
    assert base64.b64decode(picture["image/png"]) == moved != still


@pytest.mark.slow
def test_other_outputs_are_as_ever(executed):
    (table,) = data(executed.cells[5])
    assert set(table) == {"text/plain", "text/html"}
    (figure,) = data(executed.cells[6])
    assert "image/png" in figure


@pytest.mark.slow
def test_what_has_a_timeline_draws_itself_and_keeps_its_words(executed):
    (schedule,), (simulation,) = data(executed.cells[7]), data(executed.cells[8])
    assert schedule["text/plain"] == "<GPipe: 2 ranks, 3 micro-batches>"
    assert simulation["text/plain"].startswith("<GPipe: makespan 13, bubble rate")
    assert png_size(schedule) == png_size(simulation) != (0, 0)
    assert schedule["image/png"] != simulation["image/png"]


@pytest.mark.slow
@pytest.mark.stands_on("dtcourse/plots/", "tests/plots/")
def test_nbval_accepts_what_was_saved(executed, tmp_path):
    """As committed: without the widgets' ids, which no saved notebook can use."""
    notebook = nbformat.from_dict(executed)
    for cell in notebook.cells:
        for output in cell.outputs:
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    nbformat.write(notebook, tmp_path / "saved.ipynb")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider", "saved.ipynb"],
        env={k: v for k, v in os.environ.items() if k != "MPLBACKEND"},
        cwd=tmp_path, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert f"{len(CELLS)} passed" in done.stdout
