"""Graphs: nodes in their places, links as wide as their rate and as red as they are busy."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from dtcourse.plots.style import FAINT, INK, PAPER, VERMILION, Picture, between, figure

IDLE = "#C4C9D0"
Graph = tuple[Mapping[str, tuple[float, float]], Sequence[tuple[str, str, float, float]]]


def graphs(
    panels: Mapping[str, Graph],
    *,
    title: str | None = None,
    height: float = 2.6,
    switches: Collection[str] | None = None,
) -> Picture:
    """A panel per graph, side by side.

    panels: {"label": (places, links)}; places: {name: (x, y)}; links: (name, name, rate, busy). A link's width is by
            its rate, on one logarithmic scale for all panels; its colour by busy, from grey (0) to red (the panel's
            most)
    switches: names of those nodes that are drawn as small squares, where all others are small circles and no name is
              written: for graphs of many nodes; None writes every name
    """
    if not panels:
        raise ValueError("graphs needs at least one panel: {'label': (places, links)}")
    rates = [rate for _, links in panels.values() for _, _, rate, _ in links]
    if not all(rate > 0 for rate in rates):
        raise ValueError("the rate of a link is above 0; leave out a link that is broken")
    picture, axes = figure(
        1, len(panels), height=height + 0.4, title=title,
        description=title or "Graphs: " + ", ".join(panels),
    )  # fmt: skip
    for ax, (label, (places, links)) in zip(np.atleast_1d(axes), panels.items(), strict=True):
        most = max((busy for *_, busy in links), default=0.0) or 1.0
        for a, b, rate, busy in sorted(links, key=lambda link: link[3]):
            ends = np.array([places[a], places[b]], dtype=float)
            width = 1.5 + 0.8 * math.log2(rate / min(rates))
            ax.plot(
                *ends.T, color=between(IDLE, VERMILION, busy / most), lw=width, marker="", zorder=1
            )
        for name, (x, y) in places.items():
            if switches is not None:
                square = name in switches
                ax.plot(
                    x,
                    y,
                    marker="s" if square else "o",
                    ms=5,
                    color=INK,
                    mfc=INK if square else PAPER,
                    zorder=2,
                )
                continue
            ax.annotate(
                name, (x, y), ha="center", va="center", fontsize=8, color=INK, zorder=2,
                bbox={"boxstyle": "round,pad=0.3", "fc": PAPER, "ec": FAINT, "lw": 0.8},
            )  # fmt: skip
        ax.set_title(label)
        ax.margins(0.12, 0.2)
        ax.set_axis_off()
    return picture
