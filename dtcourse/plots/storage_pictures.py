"""What each rank has stored over time, against what it may."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dtcourse.plots import units
from dtcourse.plots.style import (
    FAINT,
    INK,
    PURPLE,
    VERMILION,
    Picture,
    darker,
    figure,
    lighter,
)
from dtcourse.plots.unit_axes import not_empty

Levels = Sequence[tuple[float, float]]


def stored_over_time(
    levels: Any,
    *,
    limit: float | None = None,
    unit: str | None = None,
    time: str = "seconds",
    title: str | None = None,
) -> Picture:
    """A row for each rank: how much it has stored at each time, its peak written at the right; a column for each label.

    levels: {"1F1B": by rank, [(time, stored from then on), ...]}, or such a list alone; or what has it as
        `memory_levels` (a Simulation)
    limit: what a rank has: a dashed line
    unit: of what is stored: "bytes", or words ("micro-batches")
    time: unit of the times: "seconds", or words
    """
    many = (
        dict(levels) if isinstance(levels, Mapping) else {str(getattr(levels, "name", "")): levels}
    )
    not_empty(many, "{'1F1B': simulation.memory_levels}")
    columns: dict[str, Sequence[Levels]] = {
        str(name): getattr(one, "memory_levels", one) for name, one in many.items()
    }
    if not all(len(by_rank) and all(map(len, by_rank)) for by_rank in columns.values()):
        raise ValueError("every rank needs at least one (time, stored)")
    ranks = max(map(len, columns.values()))
    most = max(stored for by_rank in columns.values() for one in by_rank for _, stored in one)
    longest = max(one[-1][0] for by_rank in columns.values() for one in by_rank)
    picture, axes = figure(
        ranks,
        len(columns),
        width=10.0 if len(columns) > 2 else 8.0,
        height=1.0 + (0.62 if ranks <= 4 else 0.45) * ranks + (0.3 if title else 0),
        title=title,
        description=title or "Stored over time: " + (", ".join(filter(None, columns)) or "by rank"),
        squeeze=False,
        sharex=True,
    )
    scale, time_name = units.time_unit(longest) if time == "seconds" else (1.0, time)
    write = units.formatter(unit if unit == "bytes" else None)
    top = 1.12 * (max(most, limit or 0) or 1)
    for column, (name, by_rank) in enumerate(columns.items()):
        axes[0, column].set_title(name)
        axes[-1, column].set_xlabel(f"time ({time_name})")
        for rank in range(ranks):
            ax = axes[rank, column]
            ax.grid(False)
            ax.set_ylim(0, top)
            ax.set_yticks([top / 2], [f"rank {rank}" if column == 0 else ""])
            ax.tick_params(axis="y", length=0)
            ax.tick_params(axis="x", length=3 if rank == ranks - 1 else 0)
            if rank < len(by_rank):
                _draw(ax, by_rank[rank], longest, scale, limit, write)
            else:
                ax.set_yticks([])
    axes[0, 0].set_xlim(0, longest / scale or 1)
    _say(axes[-1, 0], unit, limit, write)
    return picture


def _draw(
    ax: Axes,
    levels: Levels,
    longest: float,
    scale: float,
    limit: float | None,
    write: Callable[[float], str],
) -> None:
    times, stored = map(np.asarray, zip(*levels, strict=True))
    # Until the picture's end it stays as the last change has left it.
    x, y = np.append(times, longest) / scale, np.append(stored, stored[-1])
    within = y if limit is None else np.minimum(y, limit)
    ax.fill_between(x, within, step="post", color=lighter(PURPLE, 0.55), lw=0)
    if limit is not None:
        ax.fill_between(x, within, y, step="post", color=VERMILION, lw=0)
        ax.axhline(limit, color=INK, ls="--", lw=1.1)
    ax.step(x, y, where="post", color=darker(PURPLE), lw=1.2, marker="")
    peak = float(stored.max())
    over = limit is not None and peak > limit * (1 + 1e-9)
    ax.annotate(
        write(peak), (1, 0.5), (5, 0), va="center", fontsize=9, fontweight="bold" if over else "normal",
        color=darker(VERMILION) if over else INK, xycoords="axes fraction", textcoords="offset points",
    )  # fmt: skip


def _say(ax: Axes, unit: str | None, limit: float | None, write: Callable[[float], str]) -> None:
    """Under the first column: what the numbers at the right are, and the dashed line."""
    words = "at the right: peak" + (f" ({unit})" if unit and unit != "bytes" else "")
    if limit is not None:
        words += f"; dashed: limit {write(limit)}"
    ax.annotate(
        words, (0, 0), (0, -34), xycoords="axes fraction", textcoords="offset points", fontsize=9,
        color=FAINT, va="top", annotation_clip=False,
    )  # fmt: skip
