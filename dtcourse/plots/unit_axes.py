"""Axes with units: ticks at round places, written with the unit's own prefixes."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from dtcourse.plots import units
from dtcourse.plots.style import PAPER

# A line over bars of any colour is seen by its rim.
HALO = [withStroke(linewidth=2.8, foreground=PAPER)]

UNITS = ("bytes", "decimal bytes", "seconds", "count", "flops", "percent")


def unit_axis(ax: Axes, axis: str, unit: str | None, log: bool) -> None:
    """Ticks written with the unit's own prefixes, at round places."""
    which = getattr(ax, f"{axis}axis")
    low, high = which.get_view_interval()
    if unit == "bytes":
        if log:
            octaves = max(1.0, np.log2(max(high / max(low, 1e-9), 2)))
            which.set_major_locator(LogLocator(base=2.0 ** max(1, round(octaves / 6)), numticks=12))
        else:
            which.set_major_locator(BinaryLocator())
    elif log:
        # Under two decades powers of ten alone would be one tick, or none.
        within = (1.0, 2.0, 5.0) if high < 100 * low else (1.0,)
        which.set_major_locator(LogLocator(base=10, subs=within, numticks=9))
        which.set_major_formatter(FuncFormatter(lambda v, _: units.plain_text(v)))
    if unit in UNITS:
        which.set_major_formatter(FuncFormatter(lambda v, _: units.formatter(unit)(v)))
    if log:
        ax.minorticks_off()


class BinaryLocator(MaxNLocator):
    """Round numbers of KiB, MiB or GiB, not of bytes."""

    def __init__(self) -> None:
        super().__init__(nbins=6, steps=[1, 2, 2.5, 5, 10])

    def tick_values(self, vmin: float, vmax: float) -> Any:
        prefix = 1024.0 ** max(0, int(np.log(max(abs(vmin), abs(vmax), 1)) / np.log(1024)))
        return np.asarray(super().tick_values(vmin / prefix, vmax / prefix)) * prefix


def not_empty(data: Any, example: str) -> None:
    """Refuses an empty picture, with an example of what to give."""
    if not data:
        raise ValueError(f"nothing to draw: give {example}")
