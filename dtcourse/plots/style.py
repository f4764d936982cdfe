"""One style for the whole course: paper, ink, fixed colours, and the figure that all pictures are drawn on.

Colours are Okabe and Ito's (2008), which people with any colour vision tell apart; every kind of event also has its
own lightness or hatching, for print without colour. The paper is opaque, so a picture is the same card on a light and
on a dark page, and its own contrast holds on both.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

PAPER = "#FCFCFA"
INK = "#1F2328"
FAINT = "#5F6670"  # secondary text and reference lines: 5.7 to 1 on the paper
GRID = "#DEE1E5"

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, GREY, YELLOW = "#56B4E9", "#CC79A7", "#6B7280", "#F0E442"

RANK_COLORS = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, GREY, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

KIND_COLORS: dict[str, str] = {
    "compute": BLUE, "communication": ORANGE, "wait": "#E4E7EB", "data": GREEN, "log": YELLOW,
    "memory": PURPLE, "step": "#EFF1F4", "idle": PAPER,
}  # fmt: skip
KIND_HATCHES = {"wait": "////", "data": "....", "log": "||||", "memory": "xxxx", "idle": "...."}

MEMORY_COLORS: dict[str, str] = {
    "parameters": BLUE,
    "gradients": ORANGE,
    "optimizer states": GREEN,
    "activations": PURPLE,
    "buffers": SKY,
    "other": "#C4C9D0",
}
MEMORY_HATCHES = {"gradients": "//", "optimizer states": "..", "activations": "xx", "buffers": "||"}

# Parts of a training step on one micro-batch: the colour of the first micro-batch and of the last one. Each kind has a
# band of lightness of its own, so that grey is enough.
ACTION_COLORS: dict[str, tuple[str, str]] = {
    "forward": ("#80C7F0", "#55ABDD"),
    "backward": ("#8F4300", "#6E2C00"),
    "backward-input": ("#DE6505", "#CC5500"),
    "backward-weight": ("#FDF0CC", "#F5DC98"),
    "optimizer": ("#FFFFFF", "#FFFFFF"),
}
ACTION_HATCHES = {"optimizer": "////"}

SCREEN_DPI = 100  # a picture 8 inches wide is 800 CSS pixels
PIXELS_DPI = 160  # drawn finer than that, for dense screens and print


def rank_color(rank: int) -> str:
    """The colour of a rank, the same in every picture; after eight ranks they repeat."""
    return RANK_COLORS[rank % len(RANK_COLORS)]


def kind_color(kind: str) -> str:
    """The colour of a kind of event ("compute", "communication", "wait", ...)."""
    if kind not in KIND_COLORS:
        raise ValueError(f"the kinds of events are {', '.join(KIND_COLORS)}; got {kind!r}")
    return KIND_COLORS[kind]


def contrast(a: str, b: str) -> float:
    """WCAG 2's contrast ratio of two colours, 1 to 21; text needs 4.5."""
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def text_on(color: str) -> str:
    """Paper, ink or pure black: what reads on `color`."""
    return next((text for text in (PAPER, INK) if contrast(text, color) >= 4.5), "#000000")


def apply_style() -> None:
    """Gives the course's style to all matplotlib figures of this process. Importing dtcourse.plots does it.

    It is seaborn's whitegrid and what differs from it, written out: seaborn itself takes pandas, scipy.stats and pyplot
    along, three quarters of the time that importing pictures took.
    """
    mpl.rcParams.update(
        {
            "axes.axisbelow": True,
            "axes.edgecolor": FAINT,
            "axes.facecolor": PAPER,
            "axes.grid": True,
            "axes.labelcolor": INK,
            "axes.labelsize": 10,
            "axes.linewidth": 0.8,
            "axes.prop_cycle": cycler(color=RANK_COLORS, marker=MARKERS),
            "axes.spines.left": False,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlelocation": "left",
            "axes.titlesize": 10.5,
            "axes.titleweight": "bold",
            "figure.constrained_layout.h_pad": 0.08,
            "figure.constrained_layout.use": True,
            "figure.constrained_layout.w_pad": 0.12,
            "figure.dpi": SCREEN_DPI,
            "figure.facecolor": PAPER,
            "figure.figsize": (8.0, 3.8),
            "figure.titlesize": 12,
            "figure.titleweight": "bold",
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same everywhere
            "font.size": 10,
            "grid.color": GRID,
            "grid.linewidth": 0.7,
            "hatch.linewidth": 0.6,
            "legend.fontsize": 9,
            "legend.frameon": False,
            "legend.title_fontsize": 10.8,
            "lines.linewidth": 2.0,
            "lines.markersize": 6.0,
            "lines.solid_capstyle": "round",
            "patch.edgecolor": "w",
            "patch.force_edgecolor": True,
            "savefig.dpi": PIXELS_DPI,
            "savefig.facecolor": PAPER,
            "text.color": INK,
            "xtick.bottom": True,
            "xtick.color": INK,
            "xtick.labelsize": 9,
            "xtick.major.size": 3.0,
            "xtick.major.width": 1.25,
            "xtick.minor.size": 4.0,
            "xtick.minor.width": 1.0,
            "ytick.color": INK,
            "ytick.labelsize": 9,
            "ytick.left": False,
            "ytick.major.size": 6.0,
            "ytick.major.width": 1.25,
            "ytick.minor.size": 4.0,
            "ytick.minor.width": 1.0,
        }
    )


class Picture(Figure):
    """A matplotlib Figure that shows itself once, as the last expression of a cell.

    It is not pyplot's: nothing is shown twice, and nothing is kept alive.
    description: what is to be seen, in words: the text for who cannot see it, and what a saved notebook is compared by
    """

    def __init__(self, *args: Any, description: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        FigureCanvasAgg(self)
        self.description = description

    def __repr__(self) -> str:
        return f"<Picture: {self.description}>" if self.description else "<Picture>"

    def png(self) -> bytes:
        """The picture as a PNG file."""
        file = io.BytesIO()
        # No date and no version in the file: the same picture is the same bytes.
        self.savefig(file, format="png", dpi=PIXELS_DPI, metadata={"Software": None})
        return file.getvalue()

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        width, height = (round(inches * SCREEN_DPI) for inches in self.get_size_inches())
        return self.png(), {"width": width, "height": height, "alt": self.description}


def figure(
    rows: int = 1,
    columns: int = 1,
    *,
    width: float = 8.0,
    height: float | None = None,
    title: str | None = None,
    description: str | None = None,
    **subplots: Any,
) -> tuple[Picture, Any]:
    """A Picture in the course's style with rows x columns axes (one Axes, or an array of them).

    width, height: inches; 100 pixels each on the screen
    description: default is the title; no measured number should be in it
    subplots: as for Figure.subplots (sharex, width_ratios, ...)
    """
    picture = Picture(
        figsize=(width, height or 0.8 + 3.0 * rows),
        layout="constrained",
        description=description if description is not None else (title or ""),
    )
    axes = picture.subplots(rows, columns, **subplots)
    if title:
        set_title(picture, title)
    return picture, axes


def set_title(picture: Figure, title: str) -> None:
    """The picture's title, at its left edge, broken into lines that fit."""
    letters = max(20, int(picture.get_size_inches()[0] * 9.5))
    picture.suptitle("\n".join(textwrap.wrap(title, letters)), x=0.012, ha="left")


def legend_below(picture: Picture, handles: Sequence[Any], *, inches_each: float = 1.3) -> None:
    """A legend under everything else, where it covers nothing. inches_each: room for the longest of its labels."""
    if handles:
        per_row = max(1, int(picture.get_size_inches()[0] / inches_each))
        picture.legend(
            handles=list(handles),
            loc="outside lower left",
            ncols=min(len(handles), per_row),
            handlelength=1.6,
            columnspacing=1.4,
        )


def label_lines(
    axes: Axes, labels: Mapping[str, str] | None = None, *, fontsize: float = 9
) -> None:
    """Writes each line's label at its right end, in its colour, spread so that no two overlap.

    Takes the place of a legend. Lines without a label are left out. labels: other words for some of the labels.
    Call it last: the labels' places depend on the axes' limits.
    """
    lines = [
        line
        for line in axes.get_lines()
        if not str(line.get_label()).startswith("_") and np.size(line.get_xdata())
    ]
    if not lines:
        return
    figure: Any = axes.figure
    figure.draw_without_rendering()
    box = axes.get_window_extent()
    step = fontsize * 1.55 / 72 * axes.figure.dpi / box.height
    ends = []
    for line in lines:
        xy = np.column_stack([line.get_xdata(), line.get_ydata()]).astype(float)
        xy = xy[np.isfinite(xy).all(axis=1)]
        if not len(xy):
            continue
        points = axes.transAxes.inverted().transform(axes.transData.transform(xy))
        inside = points[points[:, 0] <= 1.0001]
        end = (inside if len(inside) else points)[-1]
        ends.append((float(np.clip(end[1], 0, 1)), float(min(end[0], 1)), line))
    ends.sort(key=lambda item: item[0])
    places = spread([y for y, _, _ in ends], step)
    for (y, x, line), place in zip(ends, places, strict=True):
        label = str(line.get_label())
        axes.annotate(
            (labels or {}).get(label, label),
            xy=(x, y),
            xycoords="axes fraction",
            xytext=(1.03, place),
            textcoords="axes fraction",
            color=darker(str(mpl.colors.to_hex(line.get_color()))),
            fontsize=fontsize,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": FAINT,  # in the line's own colour it would look like more of the data
                "lw": 0.7,
                "shrinkA": 1,
                "shrinkB": 3,
            },
        )


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Ascending places near ascending values, at least `gap` apart, and centred on the values that were pushed."""
    groups: list[list[Any]] = []  # [centre, members]
    for value in values:
        groups.append([value, [value]])
        while len(groups) > 1:
            (a, first), (b, second) = groups[-2:]
            if b - a >= gap * (len(first) + len(second)) / 2:
                break
            both = first + second
            groups[-2:] = [[sum(both) / len(both), both]]
    return [
        centre + gap * (i - (len(members) - 1) / 2)
        for centre, members in groups
        for i in range(len(members))
    ]


def darker(color: str, ratio: float = 4.6) -> str:
    """The colour, darkened until text of it reads on the paper."""
    rgb = np.array(to_rgb(color))
    while contrast(hex_of(rgb), PAPER) < ratio:
        rgb = rgb * 0.95
    return hex_of(rgb)


def hex_of(color: Any) -> str:
    """Any colour that matplotlib knows, as "#rrggbb"."""
    return mpl.colors.to_hex(color)


def between(first: str, last: str, part: float) -> str:
    """The colour `part` of the way from the first to the last; 0 is the first."""
    return hex_of(np.array(to_rgb(first)) * (1 - part) + np.array(to_rgb(last)) * part)


def lighter(color: str, amount: float = 0.75) -> str:
    """The colour mixed with paper: amount 0 is the colour, 1 the paper."""
    return between(color, PAPER, amount)


def _luminance(color: str) -> float:
    c = np.array(to_rgb(color))
    c = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    return float(c @ (0.2126, 0.7152, 0.0722))
