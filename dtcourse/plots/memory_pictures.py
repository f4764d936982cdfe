"""A device's memory: what is alive from operator to operator, and how an allocator has cut its segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dtcourse.plots import units
from dtcourse.plots.style import (
    INK,
    MEMORY_COLORS,
    PAPER,
    RANK_COLORS,
    Picture,
    figure,
    legend_below,
)
from dtcourse.plots.unit_axes import not_empty, unit_axis


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
