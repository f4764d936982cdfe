"""The style: colours that everybody tells apart, text that reads, labels that never overlap. No pixels are compared."""

import itertools
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from dtcourse import plots
from dtcourse.plots import style

# Machado, Oliveira and Fernandes 2009, full severity, on linear RGB.
VISION = {
    "normal": np.eye(3),
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
}


def lab(color: str, vision: str) -> np.ndarray:
    """CIELAB of a colour as somebody sees it."""
    c = np.array(to_rgb(color))
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(VISION[vision]) @ linear, 0, 1)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    f = np.cbrt(to_xyz @ linear / (0.9505, 1, 1.089))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
def test_rank_colours_are_told_apart(vision):
    for a, b in itertools.combinations(plots.RANK_COLORS, 2):
        assert np.linalg.norm(lab(a, vision) - lab(b, vision)) > 12, (a, b)


@pytest.mark.parametrize(
    ("colors", "hatches"),
    [(style.KIND_COLORS, style.KIND_HATCHES), (style.MEMORY_COLORS, style.MEMORY_HATCHES)],
)
def test_fills_are_told_apart_in_greyscale(colors, hatches):
    for a, b in itertools.combinations(colors, 2):
        if {a, b} <= {"step", "idle"}:  # both are the absence of work, and step has an outline
            continue
        by_lightness = style.contrast(colors[a], colors[b]) > 1.35
        assert by_lightness or hatches.get(a) != hatches.get(b), (a, b)


def test_text_reads_on_paper_and_on_every_fill():
    assert style.contrast(plots.INK, plots.PAPER) > 12
    assert style.contrast(style.FAINT, plots.PAPER) >= 4.5
    fills = {*plots.RANK_COLORS, *plots.KIND_COLORS.values(), *plots.MEMORY_COLORS.values()}
    for color in fills:
        assert style.contrast(style.text_on(color), color) >= 4.5, color
        assert style.contrast(style.darker(color), plots.PAPER) >= 4.5, color


def test_contrast_is_the_standards():
    assert style.contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert style.contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)


def test_importing_plots_applies_the_style():
    assert mpl.rcParams["figure.facecolor"] == plots.PAPER
    assert mpl.rcParams["axes.prop_cycle"].by_key()["color"] == list(plots.RANK_COLORS)
    assert plots.rank_color(0) == plots.rank_color(8) == plots.RANK_COLORS[0]
    with pytest.raises(ValueError, match=r"compute.*'sleep'"):
        plots.kind_color("sleep")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.floats(0.01, 0.2))
def test_spread_keeps_the_order_and_the_gap(values, gap):
    values.sort()
    places = style.spread(values, gap)
    assert len(places) == len(values)
    assert all(b - a >= gap * (1 - 1e-9) for a, b in itertools.pairwise(places))
    # What is far enough apart already stays where it is.
    if all(b - a >= gap for a, b in itertools.pairwise(values)):
        assert places == pytest.approx(values)


def test_a_picture_is_a_deterministic_opaque_png_of_the_size_it_says():
    def draw() -> plots.Picture:
        return plots.bars({"a": 1.0, "b": 2.0}, title="Two bars")

    data, meta = draw()._repr_png_()
    assert data == draw().png()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(data[at : at + 4]) for at in (16, 20))
    assert (width, height) == (
        round(meta["width"] * 1.6),
        pytest.approx(meta["height"] * 1.6, abs=1),
    )
    assert meta["alt"] == "Two bars"
    corner = mpl.image.imread(__import__("io").BytesIO(data))[0, 0]
    assert mpl.colors.to_hex(corner[:3]).upper() == plots.PAPER
    assert len(corner) == 3 or corner[3] == 1


def test_pictures_are_not_kept_alive_by_pyplot():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    plots.bars({"a": 1.0})
    assert plt.get_fignums() == before


def test_ranks_do_not_pay_for_plots():
    code = (
        "import sys, dtcourse, dtcourse.models, dtcourse.data, dtcourse.events; "
        "bad = {'matplotlib', 'seaborn', 'IPython', 'ipywidgets'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_without_a_running_ipython_nothing_is_registered():
    from dtcourse.plots import notebook

    assert notebook.shell() is None
    assert notebook.register() is False
