"""A device's memory: bars against what devices hold, what is alive over time, an allocator's segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.text import Annotation

from dtcourse.plots import units
from dtcourse.plots.style import (
    BLUE,
    GREY,
    INK,
    MEMORY_COLORS,
    MEMORY_HATCHES,
    PAPER,
    RANK_COLORS,
    SKY,
    VERMILION,
    Picture,
    figure,
    legend_below,
)
from dtcourse.plots.unit_axes import HALO, not_empty, unit_axis


def memory_bars(
    bars: Mapping[str, Mapping[str, float]],
    *,
    capacity: float | Mapping[str, float] | None = None,
    log: bool = False,
    title: str | None = None,
) -> Picture:
    """Where the bytes go: a bar for each model, layout or rank, stacked from its parts, against what devices hold.

    bars: {"GPT-2": {"parameters": bytes, "gradients": bytes, ...}}; parts named in MEMORY_COLORS keep their colours
    capacity: bytes of a device, or {"its name, with its size": bytes} for several; a dashed line each
    log: totals alone on a logarithmic axis, for models of very different sizes (parts cannot be stacked on one)
    """
    not_empty(bars, "{'model': {'parameters': bytes}}")
    lines = {} if capacity is None else capacity
    lines = dict(lines) if isinstance(lines, Mapping) else {units.bytes_text(lines): lines}
    parts = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    parts.sort(key=lambda p: list(MEMORY_COLORS).index(p) if p in MEMORY_COLORS else 99)
    totals = [sum(bar.values()) for bar in bars.values()]
    if log and min([*totals, *lines.values()]) <= 0:
        raise ValueError(f"a logarithmic axis needs positive bytes; the bars' totals are {totals}")
    most = max([*totals, *lines.values()]) or 1
    picture, ax = figure(
        height=1.5 + 0.5 * len(bars) + (0.25 if lines else 0),
        title=title,
        description=title or "Memory of " + ", ".join(map(str, bars)),
    )
    taken = {MEMORY_COLORS[p] for p in parts if p in MEMORY_COLORS}
    spare = cycle(dict.fromkeys(c for c in (VERMILION, GREY, SKY, *RANK_COLORS) if c not in taken))
    colors = {p: MEMORY_COLORS.get(p) or next(spare) for p in parts}
    y = np.arange(len(bars))
    if log:
        low = 10 ** np.floor(np.log10(min([*totals, *lines.values()])) - 0.5)
        ax.barh(y, totals, height=0.62, color=BLUE, left=0)
        ax.set_xscale("log")
        ax.set_xlim(low, most * 12)
    else:
        left = np.zeros(len(bars))
        for part in parts:
            width = np.array([bar.get(part, 0) for bar in bars.values()], dtype=float)
            ax.barh(
                y, width, left=left, height=0.62, color=colors[part], edgecolor=PAPER,
                hatch=MEMORY_HATCHES.get(part), linewidth=0.8,
            )  # fmt: skip
            left += width
        ax.set_xlim(0, most * 1.16)
    said = [
        ax.annotate(
            units.bytes_text(total), (total, at), (5, 0), textcoords="offset points",
            va="center", fontsize=9,
        )
        for at, total in zip(y, totals, strict=True)
    ]  # fmt: skip
    ax.set_yticks(y, list(map(str, bars)))
    ax.set_ylim(len(bars) - 0.45, -0.55)
    unit_axis(ax, "x", "bytes", log)
    ax.set_xlabel("memory")
    ax.grid(False, axis="y")
    _capacity_lines(ax, lines)
    _clear_of_lines(ax, said, sorted(lines.values()))
    if not log:
        legend_below(
            picture,
            [
                Patch(facecolor=colors[p], hatch=MEMORY_HATCHES.get(p), edgecolor=PAPER, label=p)
                for p in parts
            ],
        )
    return picture


def _capacity_lines(ax: Axes, lines: Mapping[str, float]) -> None:
    """Dashed lines across, each named above the axes; names that would touch go up a line."""
    figure: Any = ax.figure
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    levels: list[float] = []  # right end, in pixels, of the last name on each level
    for name, value in sorted(lines.items(), key=lambda item: item[1]):
        ax.axvline(value, color=INK, ls="--", lw=1.3, zorder=4, path_effects=HALO)
        text = ax.annotate(
            name, (value, 1), (0, 4), ha="left",
            xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=9,
        )  # fmt: skip
        box = text.get_window_extent(renderer)
        overshoot = box.x1 - ax.get_window_extent().x1
        if overshoot > 0:  # keep it over the axes
            text.set_horizontalalignment("right")
            box = text.get_window_extent(renderer)
        level = next((i for i, end in enumerate(levels) if end + 8 < box.x0), len(levels))
        levels[level : level + 1] = [box.x1]
        text.set_position((0, 4 + 13 * level))


def _clear_of_lines(ax: Axes, said: Sequence[Annotation], lines: Sequence[float]) -> None:
    """Totals that a line would cross stand to the right of it."""
    figure: Any = ax.figure
    renderer = figure.canvas.get_renderer()
    for text in said:
        for value in lines:
            x = ax.transData.transform((value, 0))[0]
            box = text.get_window_extent(renderer)
            if box.x0 - 4 < x < box.x1 + 4:
                text.xy = (value, text.xy[1])


def live_bytes(
    curve: Mapping[str, Sequence[float]],
    operators: Sequence[float],
    *,
    phases: Mapping[str, float] | None = None,
    title: str | None = None,
) -> Picture:
    """The bytes that are alive over the operators that have run, stacked by category; the peak has its bytes beside it.

    curve: {"parameters": bytes after each event, ...}; categories named in MEMORY_COLORS keep their colours
    operators: for each event, how many operators had begun
    phases: {"backward": the operator with which it begins}: a dotted line each
    """
    not_empty(curve, "{'parameters': [bytes]}")
    order = list(MEMORY_COLORS)
    kinds = sorted((k for k in curve if max(curve[k]) > 0), key=order.index)
    stacked = np.array([curve[k] for k in kinds], dtype=float)
    if stacked.shape[1:] != np.shape(operators):
        raise ValueError(
            f"every event needs its operator; got {stacked.shape[1]} events and {len(operators)} operators"
        )
    total, x = stacked.sum(0), np.asarray(operators, dtype=float)
    at = int(total.argmax())
    picture, ax = figure(
        height=3.7, title=title, description=title or "Live bytes: " + ", ".join(kinds)
    )
    ax.stackplot(
        x,
        stacked,
        colors=[MEMORY_COLORS[k] for k in kinds],
        labels=kinds,
        step="post",
        edgecolor=PAPER,
    )
    for name, begins in (phases or {}).items():
        ax.axvline(begins, color=INK, lw=1, ls=":")
        ax.annotate(name, (begins, 1.2 * total[at]), (4, 0), textcoords="offset points", fontsize=9)
    ax.plot(x[at], total[at], "v", color=INK)
    peak = f"peak {units.bytes_text(total[at])}"
    ax.annotate(peak, (x[at], total[at]), (6, 6), textcoords="offset points", fontsize=9)
    ax.set(
        xlim=(x[0], x[-1]),
        ylim=(0, 1.3 * total[at]),
        xlabel="operators that have run",
        ylabel="alive",
    )
    unit_axis(ax, "y", "bytes", False)
    legend_below(picture, ax.get_legend_handles_labels()[0])
    return picture


def segments(
    moments: Mapping[str, Sequence[Sequence[tuple[float, Any]]]], *, title: str | None = None
) -> Picture:
    """A row for each moment: the allocator's segments side by side, cut into blocks; blocks in use are filled.

    moments: {"two freed": [[(bytes, owner), ...] for each segment]}; a free block's owner is None
    """
    not_empty(moments, "{'now': [[(bytes, owner)]]}")
    picture, ax = figure(
        height=0.9 + 0.55 * len(moments),
        title=title,
        description=title or "Segments: " + ", ".join(moments),
    )
    widest = max(sum(size for s in row for size, _ in s) for row in moments.values())
    for y, row in enumerate(moments.values()):
        left = 0.0
        for segment in row:
            for size, owner in segment:
                color, ink = (PAPER, INK) if owner is None else (RANK_COLORS[0], PAPER)
                ax.barh(y, size, left=left, color=color, edgecolor=INK, lw=0.8, height=0.6)
                if size > 0.04 * widest:
                    ax.annotate(
                        units.bytes_text(size), (left + size / 2, y), ha="center", va="center", color=ink,
                        fontsize=9,
                    )  # fmt: skip
                left += size
            left += 0.04 * widest  # a gap between segments
    ax.set_yticks(range(len(moments)), list(moments))
    ax.set_ylim(len(moments) - 0.5, -0.5)
    ax.grid(False)
    unit_axis(ax, "x", "bytes", False)
    ax.set_xlabel("filled: in use; empty: reserved and free")
    return picture
