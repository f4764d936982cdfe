"""How much faster with more ranks: speed-up, efficiency, and the two laws that they are held against.

Amdahl (1967): the same work on p ranks, a fraction s of which cannot be shared, runs 1 / (s + (1 - s) / p) times as
fast. Gustafson (1988): work that grows with p, in the same time: s + (1 - s) p times as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dtcourse.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    MARKERS,
    RANK_COLORS,
    VERMILION,
    Picture,
    figure,
    label_lines,
)
from dtcourse.plural import plural

Seconds = float | Sequence[float]
"""One time, or those of several repeats."""


def amdahl(ranks: Any, serial_fraction: float) -> Any:
    """Speed-up of fixed work by Amdahl's law. ranks: a number or an array."""
    p = np.asarray(ranks, dtype=float)
    return 1 / (serial_fraction + (1 - serial_fraction) / p)


def gustafson(ranks: Any, serial_fraction: float) -> Any:
    """Scaled speed-up, of work that grows with the ranks, by Gustafson's law. ranks: a number or an array."""
    p = np.asarray(ranks, dtype=float)
    return serial_fraction + (1 - serial_fraction) * p


def fit_serial_fraction(measured: Mapping[int, Seconds]) -> float:
    """The serial fraction, 0 to 1, with which Amdahl's law fits the measured times best (least squares of 1/speed-up).

    measured: {ranks: seconds or repeats of it}, one rank included. Whatever keeps the times from falling as 1/p is
    attributed to it: serial work, communication, ranks that share a core.
    """
    _, ranks, middle, _, _ = _times(measured)
    slope = 1 - 1 / ranks
    if not slope.any():
        raise ValueError(
            "a serial fraction needs times of at least two world sizes; got only one rank's"
        )
    fraction = ((middle / middle[0] - 1 / ranks) * slope).sum() / (slope**2).sum()
    return float(np.clip(fraction, 0, 1))


def speedup(
    measured: Mapping[int, Seconds],
    *,
    serial_fraction: float | None = None,
    laws: bool = True,
    title: str | None = None,
) -> Picture:
    """Speed-up against ranks: measured (median, and range of the repeats), ideal, and the two laws.

    measured: {ranks: seconds or [seconds of each repeat]}, one rank included
    serial_fraction: of the two laws; None fits it to the measurement
    """
    baseline, ranks, middle, low, high = _times(measured)
    if serial_fraction is None and laws and len(ranks) > 1:
        serial_fraction = fit_serial_fraction(measured)
    picture, ax = figure(title=title, description=title or "Speed-up against ranks", height=3.9)
    p = np.linspace(1, ranks[-1], 100)
    ax.plot(p, p, color=FAINT, ls=(0, (2, 2)), lw=1.4, marker="", label="ideal")
    if laws and serial_fraction is not None:
        s = serial_fraction
        ax.plot(
            p, gustafson(p, s), color=GREEN, ls="-.", lw=1.6, marker="",
            label=f"Gustafson, {s:.0%} serial",
        )  # fmt: skip
        ax.plot(
            p, amdahl(p, s), color=VERMILION, ls="--", lw=1.6, marker="",
            label=f"Amdahl, {s:.0%} serial",
        )  # fmt: skip
    ax.plot(ranks, baseline / middle, color=BLUE, marker="o", label="measured", zorder=4)
    if (low != high).any():
        ax.vlines(ranks, baseline / high, baseline / low, color=BLUE, lw=5, alpha=0.35, zorder=3)
    _rank_axis(ax, ranks)
    ax.set_ylabel("speed-up (times one rank)")
    ax.set_ylim(0, None)
    label_lines(ax)
    return picture


def efficiency(
    measured: Mapping[int, Seconds] | Mapping[str, Mapping[int, Seconds]],
    *,
    weak: bool = False,
    title: str | None = None,
) -> Picture:
    """Scaling efficiency against ranks, in percent of perfect.

    measured: {ranks: seconds}, or {"label": {ranks: seconds}} for several lines; one rank included
    weak: the work grew with the ranks, so perfect is the same time (strong: a p-th of the time)
    """
    series: Any = (
        measured
        if all(isinstance(v, Mapping) for v in measured.values())
        else {"measured": measured}
    )
    if not series:
        raise ValueError("give times to draw: {1: seconds, 2: seconds}")
    what = "weak" if weak else "strong"
    picture, ax = figure(
        title=title, description=title or f"Efficiency of {what} scaling against ranks", height=3.6
    )
    largest = np.array([1.0])
    for i, (label, times) in enumerate(series.items()):
        baseline, ranks, middle, low, high = _times(times)
        perfect = baseline if weak else baseline / ranks
        style = {"color": RANK_COLORS[i % 7], "marker": MARKERS[i % len(MARKERS)]}
        ax.plot(ranks, 100 * perfect / middle, label=str(label), **style)
        if (low != high).any():
            ax.vlines(
                ranks,
                100 * perfect / high,
                100 * perfect / low,
                color=style["color"],
                lw=5,
                alpha=0.35,
            )
        largest = ranks if ranks[-1] >= largest[-1] else largest
    ax.axhline(100, color=FAINT, ls=(0, (2, 2)), lw=1.4)
    _rank_axis(ax, largest)
    ax.set_ylabel(f"{what} scaling efficiency (%)")
    ax.set_ylim(0, max(105, ax.get_ylim()[1]))
    label_lines(ax)
    return picture


def _times(
    measured: Mapping[int, Seconds],
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(median seconds on one rank, ranks, and the median, least and most seconds on each)."""
    if 1 not in measured:
        raise ValueError(
            f"times are compared with one rank's, which is missing; got {sorted(measured)} ranks"
        )
    ranks = sorted(measured)
    times = [np.atleast_1d(np.asarray(measured[r], dtype=float)) for r in ranks]
    for r, t in zip(ranks, times, strict=True):
        if not t.size or not (t > 0).all():
            raise ValueError(f"seconds are positive; got {measured[r]} for {plural(r, 'rank')}")
    middle = np.array([np.median(t) for t in times])
    low, high = np.array([t.min() for t in times]), np.array([t.max() for t in times])
    return float(middle[0]), np.array(ranks, dtype=float), middle, low, high


def _rank_axis(ax: Any, ranks: np.ndarray) -> None:
    ax.set_xlabel("ranks")
    if ranks[-1] > 16:  # powers of two need room
        ax.set_xscale("log", base=2)
    ax.set_xticks(ranks, [f"{int(r)}" for r in ranks])
    ax.minorticks_off()
