"""Grids: a matrix as colours, numbers by the rank that holds them, and small images side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dtcourse.plots import units
from dtcourse.plots.style import (
    INK,
    PAPER,
    Picture,
    figure,
    hex_of,
    legend_below,
    lighter,
    rank_color,
    text_on,
)
from dtcourse.plots.unit_axes import UNITS, BinaryLocator, not_empty
from dtcourse.plural import plural


def heatmap(
    matrix: Any,
    *,
    xlabel: str = "",
    ylabel: str = "",
    xticks: Sequence[Any] | None = None,
    yticks: Sequence[Any] | None = None,
    unit: str = "",
    annotate: bool | None = None,
    diverging: bool = False,
    fmt: str | None = None,
    title: str | None = None,
) -> Picture:
    """A matrix as colours, darker is more; values are written into it where they fit.

    matrix: (rows, columns), NaN for a cell without a value
    unit: of the values: "bytes", "seconds", "count", ... or a word for the scale
    annotate: None writes the values when there are at most 12 rows and columns
    diverging: two hues about zero, for differences
    fmt: how a value is written, as "{:.2f}"
    """
    import seaborn as sns  # here: it takes a second, and pandas and scipy.stats along

    values = np.asarray(matrix, dtype=float)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"a heatmap is of a matrix; got shape {values.shape}")
    rows, columns = values.shape
    for name, ticks, n in (("xticks", xticks, columns), ("yticks", yticks, rows)):
        if ticks is not None and len(ticks) != n:
            raise ValueError(
                f"{name} has {len(ticks)} entries for {n} of the matrix {values.shape}"
            )
    annotate = max(rows, columns) <= 12 if annotate is None else annotate
    tick_unit = unit if unit in UNITS else None
    write = fmt.format if fmt else units.formatter(tick_unit)
    texts = [["" if np.isnan(v) else write(v) for v in row] for row in values]
    letters = max([len(t) for row in texts for t in row] + [3]) if annotate else 0
    width = float(np.clip(1.9 + columns * max(0.42, 0.092 * letters), 3.6, 9.0))
    picture, ax = figure(
        width=width, height=float(np.clip(1.2 + 0.42 * rows, 2.4, 8)), title=title,
        description=title or f"Heat map of {ylabel} by {xlabel}",
    )  # fmt: skip
    limit = np.nanmax(np.abs(values)) if np.isfinite(values).any() else 1
    # Steps and counts are whole numbers, and so are the marks of their colour bar.
    whole = bool((np.isnan(values) | (values == np.round(values))).all())
    sns.heatmap(
        values, ax=ax, cmap="PuOr" if diverging else "cividis_r",
        vmin=-limit if diverging else None, vmax=limit if diverging else None,
        annot=np.array(texts) if annotate else False, fmt="", annot_kws={"fontsize": 8.5},
        linewidths=0.6 if max(rows, columns) <= 40 else 0, linecolor=PAPER,
        xticklabels=list(map(str, xticks)) if xticks is not None else "auto",
        yticklabels=list(map(str, yticks)) if yticks is not None else "auto",
        cbar_kws={
            "format": FuncFormatter(lambda v, _: units.formatter(tick_unit)(v)),
            "ticks": BinaryLocator() if unit == "bytes" else MaxNLocator(6, integer=whole),
            "label": "" if unit in UNITS else unit,
        },
    )  # fmt: skip
    for text in ax.texts:  # the best of ink and paper on the cell's own colour
        column, row = (int(v) for v in text.get_position())
        text.set_color(text_on(_cell_color(ax, values[row, column])))
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.grid(False)
    ax.tick_params(length=0)
    ax.set_yticklabels(ax.get_yticklabels(), rotation=0)
    return picture


def _cell_color(ax: Axes, value: float) -> str:
    mesh: Any = ax.collections[0]
    return hex_of(mesh.to_rgba(value))


def held_numbers(numbers: Any, holders: Mapping[str, Any], *, title: str | None = None) -> Picture:
    """The same numbers once for each layout, in the colour of the rank that holds them; a line where one rank ends.

    numbers: (rows, columns), written into the cells
    holders: {"by rows": the rank of each number, (rows, columns)}; NaN for a place without a number
    """
    values = np.asarray(numbers)
    not_empty(holders, "{'by rows': ranks}")
    layouts = {name: np.asarray(ranks, dtype=float) for name, ranks in holders.items()}
    for name, ranks in layouts.items():
        if values.ndim != 2 or ranks.shape != values.shape:
            raise ValueError(
                f"numbers and their holders are matrices of one shape; got {values.shape} and, "
                f"for {name!r}, {ranks.shape}"
            )
    rows, columns = values.shape
    beside = rows > 1 and columns * len(layouts) <= 24  # else one below the other
    across, down = (len(layouts), 1) if beside else (1, len(layouts))
    picture, axes = figure(
        down, across, width=max(3.6, 0.4 + 0.42 * across * (columns + 0.6)),
        height=down * (0.34 * rows + 0.5) + (0.9 if title else 0.6),
        title=title, description=title or "Who holds which number: " + ", ".join(layouts),
        squeeze=False,
    )  # fmt: skip
    for ax, (name, ranks) in zip(axes.flat, layouts.items(), strict=True):
        ax.set_axis_off()
        ax.set_title(name, loc="left")
        ax.set(xlim=(-0.05, columns + 0.05), ylim=(rows + 0.05, -0.05))
        for row, column in zip(*np.nonzero(~np.isnan(ranks)), strict=True):
            color = lighter(rank_color(int(ranks[row, column])), 0.45)
            ax.add_patch(Rectangle((column, row), 1, 1, facecolor=color, edgecolor=PAPER, lw=0.6))
            ax.text(
                column + 0.5, row + 0.5, str(_item(values[row, column])), ha="center", fontsize=8.5,
                va="center_baseline", color=text_on(color),
            )  # fmt: skip
        _lines_between(ax, ranks)
    seen = sorted({int(r) for ranks in layouts.values() for r in ranks[~np.isnan(ranks)]})
    keys = [Patch(facecolor=lighter(rank_color(r), 0.45), label=f"rank {r}") for r in seen]
    legend_below(picture, keys)
    return picture


def _lines_between(ax: Axes, ranks: Any) -> None:
    """A line around what one rank holds: two colours may look alike in print."""
    framed = np.pad(ranks, 1, constant_values=np.nan)
    for row in range(framed.shape[0] - 1):
        for column in range(framed.shape[1] - 1):
            here, right, below = (framed[row, column], framed[row, column + 1], framed[row + 1, column])  # fmt: skip
            if here != right and not (np.isnan(here) and np.isnan(right)):
                ax.plot([column, column], [row - 1, row], color=INK, lw=1.4, marker="")
            if here != below and not (np.isnan(here) and np.isnan(below)):
                ax.plot([column - 1, column], [row, row], color=INK, lw=1.4, marker="")


def images(
    images: Any,
    labels: Sequence[Any] | None = None,
    *,
    columns: int = 8,
    predictions: Sequence[Any] | None = None,
    title: str | None = None,
) -> Picture:
    """A grid of images, (N, H, W), (N, 1, H, W) or (N, 3, H, W) with values from 0 to 1, with labels over them.

    predictions: written beside the label; a wrong one is marked with a cross
    """
    pixels = np.asarray(images, dtype=float)
    if pixels.ndim == 4 and pixels.shape[1] in (1, 3):
        pixels = pixels[:, 0] if pixels.shape[1] == 1 else pixels.transpose(0, 2, 3, 1)
    if pixels.ndim not in (3, 4) or not len(pixels):
        raise ValueError(
            f"images are (N, H, W), (N, 1, H, W) or (N, 3, H, W); got {np.shape(images)}"
        )
    n = len(pixels)
    for name, given in (("labels", labels), ("predictions", predictions)):
        if given is not None and len(given) != n:
            raise ValueError(f"{plural(n, 'image')}, and {len(given)} {name}")
    columns = min(columns, n)
    rows = -(-n // columns)
    captions = labels is not None or predictions is not None
    picture, axes = figure(
        rows, columns, width=max(2.5, columns * 0.95),
        height=rows * (1.15 if captions else 0.95) + (0.4 if title else 0.1),
        title=title, description=title or plural(n, "image"), squeeze=False,
    )  # fmt: skip
    for i, ax in enumerate(axes.flat):
        ax.set_axis_off()
        if i >= n:
            continue
        ax.imshow(pixels[i].clip(0, 1), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
        words = [str(_item(s[i])) for s in (labels, predictions) if s is not None]
        wrong = len(words) == 2 and words[0] != words[1]
        ax.set_title(
            " → ".join(words) + (" ✗" if wrong else ""), loc="center", fontsize=9,
            fontweight="bold" if wrong else "normal", color="#A33F00" if wrong else INK,
        )  # fmt: skip
    return picture


def _item(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
