"""Schedules: who does which part of the work on which micro-batch, a row for each rank, several on one time axis.

The hue is the kind of work, lighter to darker are the micro-batches, white is idle. Where a rank holds several stages,
a later stage's boxes lie lower in its row. Kinds differ in lightness too: they are told apart without colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch

from dtcourse.events import HasTimeline, Timeline, timeline_of
from dtcourse.plots.style import (
    ACTION_COLORS,
    ACTION_HATCHES,
    FAINT,
    GRID,
    INK,
    PAPER,
    Picture,
    between,
    figure,
    legend_below,
    text_on,
)
from dtcourse.plots.unit_axes import not_empty
from dtcourse.plots.units import plain_text, seconds_text, time_unit

_HEIGHT = 0.84  # of a row; with several stages on a rank, boxes and their steps share it
_STEPS = 0.3
_SMALLEST = 6.0  # points: what smaller numbers would be left out


class Box(NamedTuple):
    """An event to draw. `level`: 0 for the first stage that its rank holds, 1 for the next;
    None for what is of no stage.
    """

    rank: int
    start: float
    end: float
    action: str
    micro_batch: int | None
    level: int | None


def schedules(
    schedules: Any,
    *,
    unit: str | None = None,
    figures: bool = False,
    labels: bool = True,
    title: str | None = None,
    description: str | None = None,
) -> Picture:
    """Schedules, simulated or run, under one another on one time axis; at the right,
    what part of its time a rank idles.

    schedules: {"1F1B": one}, or one alone: a Timeline, or what has one (a launch's Run, a Simulation, a Schedule).
               Drawn
        are the events whose detail has the "action": "forward", "backward", "backward-input", "backward-weight" or
        "optimizer" (also an event of that name); with "micro_batch" and "stage" where they have one
    unit: in what the times are; default: what the first schedule says, mostly seconds
    figures: for what has them (a Simulation), also `bubble_rate`, and at the right `peak_memory`: the most a rank
             stores
    labels: write the micro-batch into its box where it fits
    """
    many = dict(schedules) if isinstance(schedules, Mapping) else {_name(schedules): schedules}
    not_empty(many, "{'1F1B': simulation}")
    first = next(iter(many.values()))
    unit = unit or (first.time_unit if isinstance(first, HasTimeline) else "seconds")
    panels = {str(name): boxes_of(timeline_of(one)) for name, one in many.items()}
    ranks = {name: sorted({box.rank for box in boxes}) for name, boxes in panels.items()}
    bubbles = {
        str(name): one.bubble_rate for name, one in many.items() if hasattr(one, "bubble_rate")
    }
    peaks = {str(name): getattr(one, "peak_memory", ()) for name, one in many.items()}
    longest = max(box.end for boxes in panels.values() for box in boxes)
    shortest = min(
        (b.end - b.start for boxes in panels.values() for b in boxes if b.end > b.start), default=1
    )
    rows = sum(map(len, ranks.values()))
    inches = 0.3 if rows <= 12 else 0.25 if rows <= 20 else 0.2
    many_boxes = longest / shortest > 60
    picture, axes = figure(
        len(panels),
        width=10.0 if many_boxes else 8.0,
        height=0.95 + 0.42 * len(panels) + inches * rows + (0.3 if title else 0),
        title=title,
        description=description
        or title
        or "Schedule: " + (", ".join(filter(None, panels)) or "of one step"),
        squeeze=False,
        sharex=True,
        height_ratios=[len(one) + 0.4 for one in ranks.values()],
    )
    scale, unit_name = time_unit(longest) if unit == "seconds" else (1.0, unit)
    seen: set[str] = set()
    for ax, (name, boxes) in zip(axes[:, 0], panels.items(), strict=True):
        ax.set_xlim(0, longest / scale * 1.002 or 1)
        length = seconds_text if unit == "seconds" else plain_text
        words = f"{name}: {length(max(b.end for b in boxes))}".removeprefix(": ")
        if figures:
            words += f", bubble rate {100 * bubbles[name]:.1f}%" if name in bubbles else ""
        ax.set_title(words)
        _draw(ax, boxes, ranks[name], scale)
        _column(ax, "idle", [f"{100 * share:.0f}%" for share in idle_shares(boxes).values()], 34)
        if figures:
            _column(ax, "stores", [plain_text(peak) for peak in peaks[name]], 76)
        seen |= {box.action for box in boxes}
    axes[-1, 0].set_xlabel(f"time ({unit_name})")
    _legend(picture, seen, [b for boxes in panels.values() for b in boxes])
    if labels:
        picture.draw_without_rendering()  # now it is known how wide a box is
        for ax, (name, boxes) in zip(axes[:, 0], panels.items(), strict=True):
            _write_numbers(ax, boxes, ranks[name], scale)
    return picture


def boxes_of(timeline: Timeline) -> list[Box]:
    """What is drawn of a timeline, counted from the first of it.

    Raises ValueError if nothing is.
    """
    events = [
        (event, action)
        for event in timeline
        if (action := event.detail.get("action", event.name)) in ACTION_COLORS
    ]
    if not events:
        raise ValueError(
            f"Nothing to draw: no event of {timeline!r} has a detail 'action' that is one of "
            f"{', '.join(ACTION_COLORS)}. A pipeline's step in a launch with record=True has."
        )
    stages: dict[int, set[int]] = {}
    for event, _ in events:
        if "stage" in event.detail:
            stages.setdefault(event.rank, set()).add(event.detail["stage"])
    levels = {(r, stage): i for r, held in stages.items() for i, stage in enumerate(sorted(held))}
    origin = min(event.start for event, _ in events)
    return [
        Box(
            event.rank,
            event.start - origin,
            event.end - origin,
            action,
            event.detail.get("micro_batch"),
            levels.get((event.rank, event.detail.get("stage", -1))),
        )
        for event, action in events
    ]


def idle_shares(boxes: Sequence[Box]) -> dict[int, float]:
    """By rank, the part of the whole picture's time in which it does nothing."""
    end = max(box.end for box in boxes) - min(box.start for box in boxes)
    shares = {}
    for rank in sorted({box.rank for box in boxes}):
        # A rank does one action at a time.
        work = sum(box.end - box.start for box in boxes if box.rank == rank)
        shares[rank] = 1 - work / end if end else 0.0
    return shares


def _name(one: Any) -> str:
    return str(getattr(one, "name", ""))


def _colors(boxes: Sequence[Box]) -> list[str]:
    """Of each box: its kind's, from the first micro-batch's to the last one's."""
    last = max((box.micro_batch or 0 for box in boxes), default=0) or 1
    return [between(*ACTION_COLORS[box.action], (box.micro_batch or 0) / last) for box in boxes]


def _places(boxes: Sequence[Box], ranks: Sequence[int]) -> list[tuple[float, float]]:
    """Top and height of each box. Row r is centred at y = r, downward."""
    most = max(box.level or 0 for box in boxes)
    height = _HEIGHT - (_STEPS if most else 0.0)
    row = {rank: i for i, rank in enumerate(ranks)}
    step = _STEPS / most if most else 0.0
    return [
        # What is of no stage (the optimizer) takes the whole row.
        (
            row[box.rank] - _HEIGHT / 2 + step * (box.level or 0),
            _HEIGHT if box.level is None else height,
        )
        for box in boxes
    ]


def _draw(ax: Axes, boxes: Sequence[Box], ranks: Sequence[int], scale: float) -> None:
    ax.grid(False)
    ax.spines["left"].set_visible(False)
    colors, places = _colors(boxes), _places(boxes, ranks)
    pixels = 700 / (ax.get_xlim()[1] - ax.get_xlim()[0])
    for hatch in {ACTION_HATCHES.get(box.action) for box in boxes}:
        chosen = [i for i, box in enumerate(boxes) if ACTION_HATCHES.get(box.action) == hatch]
        corners = []
        for i in chosen:
            (top, height), left, right = places[i], boxes[i].start / scale, boxes[i].end / scale
            corners.append([(left, top), (right, top), (right, top + height), (left, top + height)])
        # A box of a few pixels would be all edge.
        edges = [
            INK if hatch else PAPER if (c[1][0] - c[0][0]) * pixels > 4 else colors[i]
            for i, c in zip(chosen, corners, strict=True)
        ]
        ax.add_collection(
            PolyCollection(
                corners, facecolors=[colors[i] for i in chosen], edgecolors=edges, hatch=hatch, lw=0.5, zorder=2
            ),
            autolim=False,
        )  # fmt: skip
    for above, below in pairwise(range(len(ranks))):
        ax.axhline((above + below) / 2, color=GRID, lw=0.6, zorder=0)
    end = max(box.end for box in boxes) / scale
    ax.axvline(end, color=FAINT, lw=0.8, ls=":", zorder=1)
    ax.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(ranks) - 0.5, -0.5)


def _column(ax: Axes, name: str, texts: Sequence[str], points: float) -> None:
    """Words at the right of each row, so many points from the axes to their right edge."""
    style: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "fontsize": 9}
    ax.annotate(name, (1, 1), (points, 6), xycoords="axes fraction", color=FAINT, **style)
    for y, text in enumerate(texts):
        ax.annotate(
            text, (1, y), (points, 0), xycoords=("axes fraction", "data"), va="center", **style
        )


def _write_numbers(ax: Axes, boxes: Sequence[Box], ranks: Sequence[int], scale: float) -> None:
    low, high = ax.get_xlim()
    window = ax.get_window_extent()
    dots: float = ax.figure.dpi
    across = window.width / dots * 72 / (high - low)
    down = window.height / dots * 72 / len(ranks)
    colors, places = _colors(boxes), _places(boxes, ranks)
    for box, color, (top, height) in zip(boxes, colors, places, strict=True):
        if box.micro_batch is None or ACTION_HATCHES.get(box.action):
            continue
        text = str(box.micro_batch)
        fits = _fitting(text, (box.end - box.start) / scale * across, height * down)
        if fits is None:
            continue
        size, rotation = fits
        ax.text(
            (box.start + box.end) / 2 / scale, top + height / 2, text, fontsize=size, rotation=rotation,
            ha="center", va="center_baseline" if not rotation else "center", color=text_on(color), zorder=3,
        ).set_in_layout(False)  # fmt: skip


def _fitting(text: str, width: float, height: float) -> tuple[float, int] | None:
    """(size, rotation) in which a number fits into a box of so many points; upright where that is not too wide."""
    along = 0.64 * len(text) + 0.2
    for rotation, space, across in ((0, width, height), (90, height, width)):
        size = min(8.5, space / along, across / 1.02)
        if size >= _SMALLEST:
            return size, rotation
    return None


def _legend(picture: Picture, seen: set[str], boxes: Sequence[Box]) -> None:
    legend_below(
        picture,
        [
            Patch(
                facecolor=between(*ACTION_COLORS[action], 0.5),
                hatch=ACTION_HATCHES.get(action),
                edgecolor=INK if action in ACTION_HATCHES else PAPER,
                lw=0.5,
                label=action,
            )
            for action in ACTION_COLORS
            if action in seen
        ],
    )
    words = []
    if any(box.micro_batch for box in boxes):
        words.append("darker: later micro-batch")
    if any(box.level for box in boxes):
        words.append("lower in the row: later stage of the rank")
    if words:
        legend = picture.legends[0]
        legend.set_title("; ".join(words), prop=FontProperties(size=9))
        legend.get_title().set_color(FAINT)
        legend.set_alignment("left")
