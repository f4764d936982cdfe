"""Bars: bytes that ranks sent, and values side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.patches import Patch

from dtcourse.plots import units
from dtcourse.plots.style import (
    BLUE,
    INK,
    PAPER,
    RANK_COLORS,
    Picture,
    figure,
    legend_below,
)
from dtcourse.plots.unit_axes import HALO, not_empty, unit_axis
from dtcourse.plural import plural


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
    not_empty(sent, "{'ring': [bytes of rank 0, bytes of rank 1]}")
    lengths = {len(v) for v in sent.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"every series has one value a rank; got lengths {sorted(lengths)}")
    n, width = lengths.pop(), 0.8 / len(sent)
    picture, ax = figure(
        title=title,
        description=title or f"{unit} sent by each of {plural(n, 'rank')}: " + ", ".join(sent),
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
            ax.axhline(value, color=INK, ls="--", lw=1.2, zorder=5, path_effects=HALO)
            ax.annotate(
                f"{label} formula\n{write(value)}".strip(), (1, value), (6, 0), va="center",
                xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=8.5,
            )  # fmt: skip
    ax.set_ylim(0, top * 1.12)
    ax.set_xticks(range(n), [f"rank {r}" if n <= 12 else str(r) for r in range(n)])
    ax.set_xlabel("rank" if n > 12 else "")
    ax.set_ylabel("sent by the rank" + ("" if unit == "bytes" else f" ({unit})"))
    ax.grid(False, axis="x")
    unit_axis(ax, "y", unit, False)
    if len(sent) > 1:
        legend_below(picture, handles)
    else:
        ax.set_title(next(iter(sent)))
    return picture


def bars(
    values: Mapping[str, float | Sequence[float]],
    *,
    unit: str | None = None,
    errors: Mapping[str, float] | None = None,
    highlight: str | Sequence[str] | None = None,
    reference: float | None = None,
    reference_label: str = "",
    xlabel: str = "",
    log: bool = False,
    title: str | None = None,
) -> Picture:
    """A bar per value, with the value written beside it; on a logarithmic scale a dot per value.

    values: {"label": value} or {"label": [value of each repeat]} (median, and range as a line)
    errors: half-lengths of the error lines, where values are single
    highlight: the labels that the picture is about; the rest is grey
    reference: a dashed line to compare with; reference_label: what it is, written below the last value
    log: a logarithmic scale, for values above 0 that differ by factors. It has no zero, so a bar's length would say
         nothing: dots stand at the values
    """
    not_empty(values, "{'label': value}")
    repeats = [np.atleast_1d(np.asarray(v, dtype=float)) for v in values.values()]
    if not all(r.size for r in repeats):
        raise ValueError("every label needs at least one value")
    middle = np.array([np.median(r) for r in repeats])
    low, high = (np.array([f(r) for r in repeats]) for f in (np.min, np.max))
    if errors:
        spans = np.array([errors.get(label, 0.0) for label in values])
        low, high = middle - spans, middle + spans
    if log and not low.min() > 0:
        raise ValueError(f"a logarithmic scale has no place for {low.min():g}")
    wanted = {highlight} if isinstance(highlight, str) else set(highlight or ())
    picture, ax = figure(
        height=1.1 + 0.42 * len(values), title=title,
        description=title or f"{xlabel or 'Values'}: " + ", ".join(map(str, values)),
    )  # fmt: skip
    y, write = np.arange(len(values)), units.formatter(unit)
    colors = [BLUE if not wanted or label in wanted else "#B6BCC4" for label in values]
    if log:
        # The dotted line leads the eye from a label to its dot, and says no length: it crosses the whole picture.
        ax.hlines(y, 0, 1, transform=ax.get_yaxis_transform(), color="#B6BCC4", ls=":", lw=1)
        ax.scatter(middle, y, s=70, c=colors, zorder=4)
    else:
        ax.barh(y, middle, height=0.64, color=colors)
    ranged = high > low
    ax.hlines(y[ranged], low[ranged], high[ranged], color=INK, lw=1.6)
    for at, value, end in zip(y, middle, high, strict=True):
        ax.annotate(
            write(value), (max(end, value, 0), at), (10 if log else 6, 0), textcoords="offset points",
            va="center", fontsize=9, zorder=5,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip
    if reference is not None:
        ax.axvline(reference, color=INK, ls="--", lw=1.2, path_effects=HALO)
        ax.annotate(
            reference_label, (reference, len(values) - 0.3), (5, 0), textcoords="offset points", va="center",
            fontsize=9, zorder=5, bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip
    ax.set_yticks(y, list(map(str, values)))
    ax.set_ylim(len(values) - (0.0 if reference_label else 0.45), -0.55)
    most = max(high.max(), reference or 0, 0)
    if log:
        ax.set_xscale("log")
        unit_axis(ax, "x", unit, True)
        least = min(low.min(), reference or low.min()) / 2
        ax.set_xlim(least, most * (most / least) ** 0.17)
    else:
        ax.set_xlim(min(0, low.min() * 1.05), most * 1.17 or 1)
        unit_axis(ax, "x", unit, False)
    ax.grid(False, axis="y")
    ax.set_xlabel(xlabel)
    return picture
