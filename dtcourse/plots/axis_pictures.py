"""Who sends how much to whom, over which axis of the mesh: a matrix of senders and receivers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from dtcourse.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PAPER,
    PURPLE,
    SKY,
    VERMILION,
    Picture,
    figure,
    legend_below,
    lighter,
)
from dtcourse.plots.units import bytes_text
from dtcourse.plural import plural

# Each axis has a hatching of its own, for print without colour; the same in every picture.
LOOKS = {
    "tp": (BLUE, ""),
    "cp": (GREEN, "\\\\\\\\"),
    "pp": (ORANGE, "////"),
    "dp_shard": (PURPLE, "xxxx"),
    "dp_replicate": (SKY, "----"),
    "ep": (VERMILION, "...."),
    "dp_shard x cp": (GREY, "||||"),
}
_OTHERS = (("#9A8F00", "++++"), (GREEN, "oo"), (SKY, "**"), (PURPLE, "//"))

_NAMED = 8  # ranks up to which bytes are written into the cells
_LENGTH = 0.94  # of the longest bar, in cells


def traffic_by_axis(
    matrices: Mapping[str, Any], *, node_size: int | None = None, title: str | None = None
) -> Picture:
    """A row for each sender, a column for each receiver: the cell's stripes say over which axes they talk, and its bars
    how much: the longest is as wide as its cell.

        plots.traffic_by_axis(run.traffic.matrices(phase="step"))

    matrices:  {axis: bytes[sender][receiver]}, all of one size; axes that send nothing are left out
    node_size: ranks of a node: lines between nodes, so that what crosses them is seen

    Raises ValueError for matrices that are not square or not alike, and where nothing is sent.
    """
    sent = {axis: np.asarray(matrix, dtype=float) for axis, matrix in matrices.items()}
    for axis, matrix in sent.items():
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(
                f"a matrix has a row and a column for each rank; {axis}: {matrix.shape}"
            )
    if len({matrix.shape for matrix in sent.values()}) > 1:
        shapes = ", ".join(f"{axis}: {matrix.shape}" for axis, matrix in sent.items())
        raise ValueError(f"all axes are of the same ranks; got {shapes}")
    sent = {axis: matrix for axis, matrix in sent.items() if matrix.any()}
    if not sent:
        raise ValueError(
            "no axis sends anything: the axes' groups have messages where launch(..., record=True) ran on a backend of "
            'ours (backend="ring"); of gloo and NCCL nobody sees who sends to whom'
        )
    ranks = len(next(iter(sent.values())))
    if node_size is not None and not 1 <= node_size <= ranks:
        raise ValueError(f"node_size is 1 to {ranks}, the ranks; got {node_size}")
    side = float(np.clip(0.85 * ranks, 3.6, 6.8))
    picture, ax = figure(
        width=side + 1.0, height=side + 1.1, title=title,
        description=title or f"What {plural(ranks, 'rank')} send to each other, by axis",
    )  # fmt: skip
    looks = _looks(sent)
    longest = max(float(matrix.max()) for matrix in sent.values())
    for src, dst in np.ndindex(ranks, ranks):
        here = {axis: float(matrix[src, dst]) for axis, matrix in sent.items() if matrix[src, dst]}
        for i, (axis, nbytes) in enumerate(here.items()):
            stripe = (dst - 0.5, src - 0.5 + i / len(here), 1 / len(here))
            _draw_stripe(ax, stripe, looks[axis], nbytes, nbytes / longest, ranks <= _NAMED)
    for rank in range(ranks):  # nobody sends to himself
        ax.plot(
            [rank - 0.5, rank + 0.5],
            [rank - 0.5, rank + 0.5],
            color=FAINT,
            lw=0.5,
            marker="",
            zorder=1,
        )
    _frame(ax, ranks, node_size)
    legend_below(
        picture,
        [
            Patch(facecolor=color, edgecolor=PAPER, hatch=hatch, label=axis)
            for axis, (color, hatch) in looks.items()
        ],
    )
    return picture


def _looks(axes: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Colour and hatching of each; axes of another name take what is left."""
    others = cycle(_OTHERS)
    return {axis: LOOKS[axis] if axis in LOOKS else next(others) for axis in axes}


def _draw_stripe(
    ax: Axes,
    stripe: tuple[float, float, float],
    look: tuple[str, str],
    nbytes: float,
    share: float,
    named: bool,
) -> None:
    (x, y, high), (color, hatch) = stripe, look
    ax.add_patch(Rectangle((x, y), 1, high, facecolor=lighter(color, 0.72), lw=0, zorder=1))
    bar = (0.4 if named else 0.7) * high
    ax.add_patch(
        Rectangle(
            (x + 0.03, y + (0.9 * high - bar if named else 0.15 * high)), max(_LENGTH * share, 0.03), bar,
            facecolor=color, edgecolor=PAPER, hatch=hatch, lw=0, zorder=2,
        )
    )  # fmt: skip
    if named:
        ax.text(
            x + 0.5, y + 0.27 * high, bytes_text(nbytes), ha="center", va="center_baseline",
            fontsize=7.5, color=INK, zorder=3,
        )  # fmt: skip


def _frame(ax: Axes, ranks: int, node_size: int | None) -> None:
    ax.set_xlim(-0.5, ranks - 0.5)
    ax.set_ylim(ranks - 0.5, -0.5)
    ax.set_aspect("equal")
    ax.grid(False)
    for edge in range(ranks + 1):
        between = node_size is not None and edge % node_size == 0
        for line in (ax.axhline, ax.axvline):
            line(edge - 0.5, color=INK if between else FAINT, lw=2.2 if between else 0.5, zorder=4)
    step = max(1, ranks // 16)
    ax.set_xticks(range(0, ranks, step))
    ax.set_yticks(range(0, ranks, step))
    ax.tick_params(length=0)
    ax.xaxis.set_ticks_position("top")
    ax.xaxis.set_label_position("top")
    ax.set(xlabel="to rank", ylabel="from rank")
