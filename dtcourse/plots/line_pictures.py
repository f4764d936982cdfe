"""Lines: losses over training, and measured points against predicted curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from dtcourse.plots.style import (
    FAINT,
    MARKERS,
    RANK_COLORS,
    Picture,
    figure,
    label_lines,
    legend_below,
)
from dtcourse.plots.unit_axes import not_empty, unit_axis
from dtcourse.plural import plural


def loss_curves(
    curves: Mapping[str, Sequence[float] | Sequence[Sequence[float]]],
    *,
    x: Sequence[float] | None = None,
    xlabel: str = "step",
    ylabel: str = "loss",
    log: bool = False,
    smooth: float = 0.0,
    title: str | None = None,
) -> Picture:
    """Curves over training; of several seeds the median, and their range as a band.

    curves: {"label": losses} or {"label": [losses of one seed, of the next, ...]}
    x: the places of the values, the same for all curves; default 0, 1, 2, ...
    smooth: 0 to 1, the weight of the past in an exponential mean (the raw curve stays, faintly)
    """
    not_empty(curves, "{'label': [losses]}")
    if not 0 <= smooth < 1:
        raise ValueError(f"smooth is at least 0 and below 1; got {smooth}")
    picture, ax = figure(
        title=title, description=title or f"{ylabel} against {xlabel}: " + ", ".join(curves)
    )
    for i, (label, values) in enumerate(curves.items()):
        runs = _runs(values, label)
        at = np.arange(runs.shape[1]) if x is None else np.asarray(x, dtype=float)
        if len(at) != runs.shape[1]:
            raise ValueError(f"{label!r} has {plural(runs.shape[1], 'value')}, and x has {len(at)}")
        color, (middle, low, high) = RANK_COLORS[i % 7], np.quantile(runs, (0.5, 0, 1), axis=0)
        if len(runs) > 1:
            ax.fill_between(at, low, high, color=color, alpha=0.22, lw=0)
        if smooth:
            ax.plot(at, middle, color=color, lw=1, alpha=0.3, marker="")
            middle = _smoothed(middle, smooth)
        ax.plot(
            at, middle, color=color, label=label, marker=MARKERS[i % len(MARKERS)],
            ls="--" if i % 2 else "-", ms=5,
            # A few markers, at other places on each curve: two curves that lie on one another are both seen.
            markevery=(i * len(at) // 24 % max(1, len(at) // 8), max(1, len(at) // 8)),
        )  # fmt: skip
    if log:
        ax.set_yscale("log")
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    if all(float(v).is_integer() for v in (x if x is not None else [0])):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    label_lines(ax)
    return picture


def _runs(values: Any, label: str) -> np.ndarray:
    """(seeds, steps); shorter seeds are an error, since their median would not be one."""
    lengths = {len(v) for v in values} if np.ndim(values[0]) else set()
    if len(lengths) > 1:
        raise ValueError(f"the runs of {label!r} have {sorted(lengths)} values: give equally many")
    runs = np.atleast_2d(np.asarray(values, dtype=float))
    if not runs.size:
        raise ValueError(f"{label!r} has no values")
    return runs


def _smoothed(values: np.ndarray, weight: float) -> np.ndarray:
    # Divided by the sum of the weights so far, so that the start is not pulled to zero.
    out, total, mean = np.empty_like(values), 0.0, 0.0
    for i, value in enumerate(values):
        mean, total = weight * mean + (1 - weight) * value, weight * total + (1 - weight)
        out[i] = mean / total
    return out


def curves(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    *,
    points: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    xlabel: str,
    ylabel: str,
    log_x: bool = False,
    log_y: bool = False,
    x_unit: str | None = None,
    y_unit: str | None = None,
    title: str | None = None,
) -> Picture:
    """Lines and points over x; the same label in both has one colour (points measured, the line predicted).

    lines, points: {"label": (x, y)}
    x_unit, y_unit: "bytes" (KiB), "decimal bytes" (kB), "seconds", "count", "flops", "percent" or None: how ticks
                    are written
    """
    lines, points = dict(lines or {}), dict(points or {})
    not_empty(lines | points, "lines={'label': (x, y)}")
    labels = list(dict.fromkeys([*lines, *points]))
    picture, ax = figure(
        title=title, description=title or f"{ylabel} against {xlabel}: " + ", ".join(labels)
    )
    for i, label in enumerate(labels):
        color, marker = RANK_COLORS[i % 7], MARKERS[i % len(MARKERS)]
        for kind, series in (("line", lines), ("points", points)):
            if label not in series:
                continue
            x, y = (np.asarray(v, dtype=float) for v in series[label])
            if x.shape != y.shape or x.ndim != 1 or not x.size:
                raise ValueError(
                    f"{label!r} needs as many x as y; got shapes {x.shape} and {y.shape}"
                )
            named = label if kind == "line" or label not in lines else "_"
            if kind == "line":
                dash = ("-", "--", "-.", (0, (1, 1)), (0, (7, 2, 1, 2, 1, 2)))[i % 5]
                alone = label not in points and len(x) <= 24
                ax.plot(
                    x, y, color=color, ls=dash, marker=marker if alone else "", ms=5, label=named
                )
            else:
                ax.plot(x, y, color=color, ls="", marker=marker, label=named)
    for axis, log in (("x", log_x), ("y", log_y)):
        if log:
            getattr(ax, f"set_{axis}scale")("log")
    unit_axis(ax, "x", x_unit, log_x)
    unit_axis(ax, "y", y_unit, log_y)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    if set(lines) & set(points):
        legend_below(
            picture,
            [
                Line2D([], [], color=FAINT, ls="", marker="o", label="measured"),
                Line2D([], [], color=FAINT, marker="", label="predicted"),
            ],
        )
    label_lines(ax)
    return picture
