"""Bytes, losses, curves, bars, matrices and images: one function a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from dtcourse.plots import units
from dtcourse.plots.style import (
    BLUE,
    FAINT,
    GREY,
    INK,
    MARKERS,
    MEMORY_COLORS,
    MEMORY_HATCHES,
    PAPER,
    RANK_COLORS,
    SKY,
    VERMILION,
    Picture,
    figure,
    label_lines,
    legend_below,
    text_on,
)

# A line over bars of any colour is seen by its rim.
_HALO = [withStroke(linewidth=2.8, foreground=PAPER)]


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
    _not_empty(bars, "{'model': {'parameters': bytes}}")
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
    spare = (VERMILION, GREY, SKY, *RANK_COLORS)
    colors = {p: MEMORY_COLORS.get(p) or spare[i % len(spare)] for i, p in enumerate(parts)}
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
    for at, total in zip(y, totals, strict=True):
        ax.annotate(
            units.bytes_text(total), (total, at), (5, 0), textcoords="offset points",
            va="center", fontsize=9,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}, zorder=5,
        )  # fmt: skip
    ax.set_yticks(y, list(map(str, bars)))
    ax.set_ylim(len(bars) - 0.45, -0.55)
    _unit_axis(ax, "x", "bytes", log)
    ax.set_xlabel("memory")
    ax.grid(False, axis="y")
    _capacity_lines(ax, lines)
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
    ax.figure.draw_without_rendering()
    renderer = ax.figure.canvas.get_renderer()
    levels: list[float] = []  # right end, in pixels, of the last name on each level
    for name, value in sorted(lines.items(), key=lambda item: item[1]):
        ax.axvline(value, color=INK, ls="--", lw=1.3, zorder=4, path_effects=_HALO)
        text = ax.annotate(
            name, (value, 1), (0, 4), ha="left",
            xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=9,
        )  # fmt: skip
        box = text.get_window_extent(renderer)
        overshoot = box.x1 - ax.get_window_extent().x1
        if overshoot > 0:  # keep it over the axes
            text.set_ha("right")
            box = text.get_window_extent(renderer)
        level = next((i for i, end in enumerate(levels) if end + 8 < box.x0), len(levels))
        levels[level : level + 1] = [box.x1]
        text.set_position((0, 4 + 13 * level))


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
    _not_empty(curves, "{'label': [losses]}")
    if not 0 <= smooth < 1:
        raise ValueError(f"smooth is at least 0 and below 1; got {smooth}")
    picture, ax = figure(
        title=title, description=title or f"{ylabel} against {xlabel}: " + ", ".join(curves)
    )
    for i, (label, values) in enumerate(curves.items()):
        runs = _runs(values, label)
        at = np.arange(runs.shape[1]) if x is None else np.asarray(x, dtype=float)
        if len(at) != runs.shape[1]:
            raise ValueError(f"{label!r} has {runs.shape[1]} values, and x has {len(at)}")
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


def bytes_by_rank(
    sent: Mapping[str, Sequence[float]],
    *,
    expected: float | Mapping[str, float] | None = None,
    unit: str = "bytes",
    title: str | None = None,
) -> Picture:
    """What each rank sent, a group of bars for each rank.

    sent: {"ring": [bytes of rank 0, of rank 1, ...], "naive": [...]}
    expected: the formula's value, for all or {"ring": value}: a dashed line
    unit: "bytes", or "count" for messages
    """
    _not_empty(sent, "{'ring': [bytes of rank 0, bytes of rank 1]}")
    lengths = {len(v) for v in sent.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"every series has one value a rank; got lengths {sorted(lengths)}")
    n, width = lengths.pop(), 0.8 / len(sent)
    picture, ax = figure(
        title=title,
        description=title or f"{unit} sent by each of {n} ranks: " + ", ".join(sent),
        height=3.4,
    )
    write, hatches = units.formatter(unit), ("", "//", "..", "xx", "\\\\")
    room = ax.figure.get_size_inches()[0] * 72 * 0.85 / (n * len(sent))  # points a bar
    top = max(max(v) for v in sent.values()) or 1
    handles = []
    for i, (label, values) in enumerate(sent.items()):
        at = np.arange(n) + (i - (len(sent) - 1) / 2) * width
        color, hatch = RANK_COLORS[i % 7], hatches[i % len(hatches)]
        ax.bar(at, values, width * 0.94, color=color, hatch=hatch, edgecolor=PAPER, lw=0.8)
        for a, v in zip(at, values, strict=True):
            if len(write(v)) * 5.2 < room:
                ax.annotate(
                    write(v), (a, v), (0, 2), textcoords="offset points", ha="center",
                    va="bottom", fontsize=8, zorder=6,
                    bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.4, "alpha": 0.85},
                )  # fmt: skip
        handles.append(Patch(facecolor=color, hatch=hatch, edgecolor=PAPER, label=label))
    lines = expected if isinstance(expected, Mapping) else {"": expected}
    for label, value in lines.items():
        if value is not None:
            top = max(top, value)
            ax.axhline(value, color=INK, ls="--", lw=1.2, zorder=5, path_effects=_HALO)
            ax.annotate(
                f"{label} formula\n{write(value)}".strip(), (1, value), (6, 0), va="center",
                xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=8.5,
            )  # fmt: skip
    ax.set_ylim(0, top * 1.12)
    ax.set_xticks(range(n), [f"rank {r}" if n <= 12 else str(r) for r in range(n)])
    ax.set_xlabel("rank" if n > 12 else "")
    ax.set_ylabel("sent by the rank" + ("" if unit == "bytes" else f" ({unit})"))
    ax.grid(False, axis="x")
    _unit_axis(ax, "y", unit, False)
    if len(sent) > 1:
        legend_below(picture, handles)
    else:
        ax.set_title(next(iter(sent)))
    return picture


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
    x_unit, y_unit: "bytes", "seconds", "count", "flops", "percent" or None: how ticks are written
    """
    lines, points = dict(lines or {}), dict(points or {})
    _not_empty(lines | points, "lines={'label': (x, y)}")
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
                dash = ("-", "--", "-.", (0, (1, 1)))[i % 4]
                alone = label not in points and len(x) <= 24
                ax.plot(
                    x, y, color=color, ls=dash, marker=marker if alone else "", ms=5, label=named
                )
            else:
                ax.plot(x, y, color=color, ls="", marker=marker, label=named)
    for axis, log in (("x", log_x), ("y", log_y)):
        if log:
            getattr(ax, f"set_{axis}scale")("log")
    _unit_axis(ax, "x", x_unit, log_x)
    _unit_axis(ax, "y", y_unit, log_y)
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


def bars(
    values: Mapping[str, float | Sequence[float]],
    *,
    unit: str | None = None,
    errors: Mapping[str, float] | None = None,
    highlight: str | Sequence[str] | None = None,
    reference: float | None = None,
    xlabel: str = "",
    title: str | None = None,
) -> Picture:
    """A bar a value, with the value written beside it.

    values: {"label": value} or {"label": [value of each repeat]} (median, and range as a line)
    errors: half-lengths of the error lines, where values are single
    highlight: the labels that the picture is about; the rest is grey
    reference: a dashed line to compare with
    """
    _not_empty(values, "{'label': value}")
    repeats = [np.atleast_1d(np.asarray(v, dtype=float)) for v in values.values()]
    if not all(r.size for r in repeats):
        raise ValueError("every label needs at least one value")
    middle = np.array([np.median(r) for r in repeats])
    low, high = (np.array([f(r) for r in repeats]) for f in (np.min, np.max))
    if errors:
        spans = np.array([errors.get(label, 0.0) for label in values])
        low, high = middle - spans, middle + spans
    wanted = {highlight} if isinstance(highlight, str) else set(highlight or ())
    picture, ax = figure(
        height=1.1 + 0.42 * len(values), title=title,
        description=title or f"{xlabel or 'Values'}: " + ", ".join(map(str, values)),
    )  # fmt: skip
    y, write = np.arange(len(values)), units.formatter(unit)
    colors = [BLUE if not wanted or label in wanted else "#B6BCC4" for label in values]
    ax.barh(y, middle, height=0.64, color=colors)
    ranged = high > low
    ax.hlines(y[ranged], low[ranged], high[ranged], color=INK, lw=1.6)
    for at, value, end in zip(y, middle, high, strict=True):
        ax.annotate(
            write(value), (max(end, value, 0), at), (6, 0), textcoords="offset points",
            va="center", fontsize=9, zorder=5,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip
    if reference is not None:
        ax.axvline(reference, color=INK, ls="--", lw=1.2, path_effects=_HALO)
    ax.set_yticks(y, list(map(str, values)))
    ax.set_ylim(len(values) - 0.45, -0.55)
    most = max(high.max(), reference or 0, 0)
    ax.set_xlim(min(0, low.min() * 1.05), most * 1.17 or 1)
    ax.grid(False, axis="y")
    _unit_axis(ax, "x", unit, False)
    ax.set_xlabel(xlabel)
    return picture


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
    tick_unit = unit if unit in _UNITS else None
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
            "ticks": _BinaryLocator() if unit == "bytes" else MaxNLocator(6),
            "label": "" if unit in _UNITS else unit,
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
    return mpl.colors.to_hex(ax.collections[0].to_rgba(value))


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
            raise ValueError(f"{n} images, and {len(given)} {name}")
    columns = min(columns, n)
    rows = -(-n // columns)
    captions = labels is not None or predictions is not None
    picture, axes = figure(
        rows, columns, width=max(2.5, columns * 0.95),
        height=rows * (1.15 if captions else 0.95) + (0.4 if title else 0.1),
        title=title, description=title or f"{n} images", squeeze=False,
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


_UNITS = ("bytes", "seconds", "count", "flops", "percent")


def _unit_axis(ax: Axes, axis: str, unit: str | None, log: bool) -> None:
    """Ticks written with the unit's own prefixes, at round places."""
    which = getattr(ax, f"{axis}axis")
    if unit == "bytes":
        if log:
            low, high = ax.get_xlim() if axis == "x" else ax.get_ylim()
            octaves = max(1.0, np.log2(max(high / max(low, 1e-9), 2)))
            which.set_major_locator(LogLocator(base=2.0 ** max(1, round(octaves / 6)), numticks=12))
        else:
            which.set_major_locator(_BinaryLocator())
    elif log:
        which.set_major_locator(LogLocator(base=10, numticks=9))
        which.set_major_formatter(FuncFormatter(lambda v, _: units.plain_text(v)))
    if unit in _UNITS:
        which.set_major_formatter(FuncFormatter(lambda v, _: units.formatter(unit)(v)))
    if log:
        ax.minorticks_off()


class _BinaryLocator(MaxNLocator):
    """Round numbers of KiB, MiB or GiB, not of bytes."""

    def __init__(self) -> None:
        super().__init__(nbins=6, steps=[1, 2, 2.5, 5, 10])

    def tick_values(self, vmin: float, vmax: float) -> Any:
        prefix = 1024.0 ** max(0, int(np.log(max(abs(vmin), abs(vmax), 1)) / np.log(1024)))
        return super().tick_values(vmin / prefix, vmax / prefix) * prefix


def _not_empty(data: Any, example: str) -> None:
    if not data:
        raise ValueError(f"nothing to draw: give {example}")
