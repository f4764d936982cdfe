"""Grids: a matrix as colours, and small images side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dtcourse.plots import units
from dtcourse.plots.style import (
    INK,
    PAPER,
    Picture,
    figure,
    hex_of,
    text_on,
)
from dtcourse.plots.unit_axes import UNITS, BinaryLocator
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
    sns.heatmap(
        values, ax=ax, cmap="PuOr" if diverging else "cividis_r",
        vmin=-limit if diverging else None, vmax=limit if diverging else None,
        annot=np.array(texts) if annotate else False, fmt="", annot_kws={"fontsize": 8.5},
        linewidths=0.6 if max(rows, columns) <= 40 else 0, linecolor=PAPER,
        xticklabels=list(map(str, xticks)) if xticks is not None else "auto",
        yticklabels=list(map(str, yticks)) if yticks is not None else "auto",
        cbar_kws={
            "format": FuncFormatter(lambda v, _: units.formatter(tick_unit)(v)),
            "ticks": BinaryLocator() if unit == "bytes" else MaxNLocator(6),
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
