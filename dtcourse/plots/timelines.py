"""What each rank did when: a row for each lane of each rank, all on one clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from dtcourse.events import Event, Timeline
from dtcourse.plots.style import (
    FAINT,
    GRID,
    INK,
    KIND_COLORS,
    KIND_HATCHES,
    Picture,
    figure,
    legend_below,
    text_on,
)
from dtcourse.plots.units import time_unit
from dtcourse.plural import plural

_HINT = "no events: launch(..., record=True) records them"


def timeline(
    timeline: Timeline,
    *,
    ranks: Sequence[int] | None = None,
    kinds: Sequence[str] | None = None,
    start: float = 0.0,
    end: float | None = None,
    labels: bool = True,
    title: str | None = None,
) -> Picture:
    """Events as bars over time, a row for each lane of each rank; an event inside another hangs below it.

    ranks, kinds: which to show; default all
    start, end: the part to show, in seconds after the timeline's first event
    labels: write an event's name into its bar where it fits
    """
    return timelines(
        {"": timeline},
        ranks=ranks,
        kinds=kinds,
        start=start,
        end=end,
        labels=labels,
        title=title,
        description=title or f"Timeline of {_ranks_text(timeline, ranks)}",
    )


def timelines(
    timelines: Mapping[str, Timeline],
    *,
    ranks: Sequence[int] | None = None,
    kinds: Sequence[str] | None = None,
    start: float = 0.0,
    end: float | None = None,
    labels: bool = True,
    title: str | None = None,
    description: str | None = None,
) -> Picture:
    """Several timelines under one another on one time scale, each counted from its own first event.

    Made for measured against predicted, or before against after.
    """
    if not timelines:
        raise ValueError("give at least one timeline: {'measured': run.timeline}")
    if end is not None and end <= start:
        raise ValueError(f"end is after start; got start={start} and end={end} seconds")
    layouts = {
        name: _rows(t, _chosen(t, ranks, kinds), start, end) for name, t in timelines.items()
    }
    heights = [max(2, len(rows)) for rows in layouts.values()]
    row = 0.34 if sum(heights) <= 8 else 0.26 if sum(heights) <= 16 else 0.2
    picture, axes = figure(
        len(layouts),
        1,
        height=0.75 + 0.45 * len(layouts) + row * sum(heights) + (0.3 if title else 0),
        title=title,
        description=description or title or "Timelines: " + ", ".join(timelines),
        squeeze=False,
        sharex=True,
        height_ratios=heights,
    )
    longest = max((t.span for t in timelines.values()), default=0.0)
    stop = end if end is not None else longest
    length = (stop - start) or 1e-3  # an instant alone has no length of its own
    unit, unit_name = time_unit(length)
    shown: set[str] = set()
    for ax, (name, rows) in zip(axes[:, 0], layouts.items(), strict=True):
        ax.set_title(name)
        # A little air on both sides, so that an instant at the very end can be seen.
        air = 0.01 * length
        ax.set_xlim((start - air) / unit, (stop + air) / unit)
        shown |= _draw(ax, rows, timelines[name].start, unit)
    axes[-1, 0].set_xlabel(f"time ({unit_name})")
    legend_below(picture, [_key(kind) for kind in KIND_COLORS if kind in shown])
    if labels:
        picture.draw_without_rendering()  # now it is known how wide a bar is
        for ax, (name, rows) in zip(axes[:, 0], layouts.items(), strict=True):
            _write_names(ax, rows, timelines[name].start, unit)
    return picture


class _Row:
    """One line of bars of one lane; depth counts from the top of the lane, -1 is the band of steps behind it."""

    def __init__(self, rank: int, lane: str, depth: int) -> None:
        self.rank, self.lane, self.depth = rank, lane, depth
        self.events: list[Event] = []
        self.busy_until = float("-inf")


def _chosen(
    timeline: Timeline, ranks: Sequence[int] | None, kinds: Sequence[str] | None
) -> list[Event]:
    unknown = sorted(set(ranks or ()) - set(timeline.ranks)) if len(timeline) else []
    if unknown:
        raise ValueError(f"no events of rank {unknown[0]}; the timeline has ranks {timeline.ranks}")
    for kind in kinds or ():
        if kind not in KIND_COLORS:
            raise ValueError(f"the kinds of events are {', '.join(KIND_COLORS)}; got {kind!r}")
    return [
        e
        for e in timeline
        if (ranks is None or e.rank in ranks) and (kinds is None or e.kind in kinds)
    ]


def _rows(
    timeline: Timeline, events: Iterable[Event], start: float, end: float | None
) -> list[_Row]:
    """Every event in the first row of its lane that is free when it starts: what runs inside another lies below."""
    origin = timeline.start
    lanes: dict[tuple[int, str], list[_Row]] = {}
    for event in events:
        rows = lanes.setdefault((event.rank, event.lane), [])
        if event.kind == "step":  # drawn behind the others
            row = next((r for r in rows if r.depth == -1), None) or _add(rows, event, -1)
        else:
            row = next(
                (r for r in rows if r.depth >= 0 and r.busy_until <= event.start), None
            ) or _add(rows, event, sum(r.depth >= 0 for r in rows))
        row.events.append(event)
        row.busy_until = max(event.end, row.busy_until)
    ordered = []
    # "main" first, then the other lanes by name.
    for key in sorted(lanes, key=lambda k: (k[0], k[1] != "main", k[1])):
        ordered += sorted(lanes[key], key=lambda r: r.depth)
    low, high = origin + start, origin + (end if end is not None else float("inf"))
    for row in ordered:
        row.events = [e for e in row.events if e.end >= low and e.start <= high]
    # A lane keeps its first row, so that its name stays; a further row that shows nothing here goes.
    return [row for row in ordered if row.events or row.depth == 0]


def _add(rows: list[_Row], event: Event, depth: int) -> _Row:
    rows.append(_Row(event.rank, event.lane, depth))
    return rows[-1]


def _places(rows: list[_Row]) -> tuple[list[float], list[tuple[float, str]], list[float]]:
    """(y of each row, tick labels with their y, y of the lines between ranks)."""
    ys: list[float] = []
    groups: dict[tuple[int, str], list[float]] = {}
    between: list[float] = []
    y = 0.0
    for i, row in enumerate(rows):
        if i and row.rank != rows[i - 1].rank:
            between.append(y - 0.5 + 0.12)
            y += 0.24
        # The band of steps shares the row of what follows it.
        ys.append(y)
        groups.setdefault((row.rank, row.lane), []).append(y)
        alone = i + 1 == len(rows) or (rows[i + 1].rank, rows[i + 1].lane) != (row.rank, row.lane)
        if row.depth >= 0 or alone:
            y += 1.0
    several = {rank for rank, lane in groups if lane != "main"}
    ticks = []
    for (rank, lane), places in groups.items():
        name = f"rank {rank}"
        if rank in several:
            name = f"{name}: {lane}"
        ticks.append((sum((min(places), max(places))) / 2, name))
    return ys, ticks, between


def _draw(ax: Axes, rows: list[_Row], origin: float, unit: float) -> set[str]:
    """Draws the bars, and returns the kinds that were drawn."""
    ax.grid(False, axis="y")
    ax.spines["left"].set_visible(False)
    if not rows:
        ax.set_yticks([])
        ax.text(0.5, 0.5, _HINT, transform=ax.transAxes, ha="center", va="center", color=FAINT)
        return set()
    ys, ticks, between = _places(rows)
    # An event of a pixel or two would be all edge.
    visible = 0.006 * (ax.get_xlim()[1] - ax.get_xlim()[0])
    for row, y in zip(rows, ys, strict=True):
        if row.depth == -1:
            last = max(
                y2
                for r, y2 in zip(rows, ys, strict=True)
                if (r.rank, r.lane) == (row.rank, row.lane)
            )
        for e in row.events:
            left, width = (e.start - origin) / unit, e.seconds / unit
            color, hatch = KIND_COLORS[e.kind], KIND_HATCHES.get(e.kind)
            if width == 0:
                ax.plot(left, y - 0.3, "v", color=INK, ms=5, clip_on=False)
            elif row.depth == -1:
                ax.add_patch(
                    Rectangle(
                        (left, y - 0.47), width, last - y + 0.94,
                        facecolor=color, edgecolor="#B6BCC4", lw=0.8, zorder=1,
                    )
                )  # fmt: skip
            else:
                ax.add_patch(
                    Rectangle(
                        (left, y - 0.38), width, 0.76, facecolor=color, hatch=hatch,
                        edgecolor=_edge(e.kind) if width > visible else color, lw=0.5, zorder=2,
                    )
                )  # fmt: skip
    for y in between:
        ax.axhline(y, color=GRID, lw=0.8, zorder=0)
    ax.set_yticks([y for y, _ in ticks], [name for _, name in ticks])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(max(ys) + 0.55, -0.55)
    return {e.kind for row in rows for e in row.events}


def _write_names(ax: Axes, rows: list[_Row], origin: float, unit: float) -> None:
    if not rows:
        return
    ys, _, _ = _places(rows)
    left_edge, right_edge = ax.get_xlim()
    per_point = ax.get_window_extent().width / ax.figure.dpi * 72 / (right_edge - left_edge)
    height = ax.get_window_extent().height / ax.figure.dpi * 72 / abs(ax.get_ylim()[0] + 0.55)
    size = min(8.5, 0.6 * height)
    if size < 6.5:
        return
    for row, y in zip(rows, ys, strict=True):
        for e in row.events:
            if row.depth == -1:
                continue
            left = max((e.start - origin) / unit, left_edge)
            right = min((e.end - origin) / unit, right_edge)
            if (right - left) * per_point > (0.64 * len(e.name) + 0.8) * size:
                color = KIND_COLORS[e.kind]
                box = {"facecolor": color, "edgecolor": "none", "pad": 0.8}
                ax.text(
                    (left + right) / 2, y, e.name, ha="center", va="center_baseline",
                    fontsize=size, color=text_on(color), zorder=3, clip_on=True,
                    bbox=box if e.kind in KIND_HATCHES else None,
                )  # fmt: skip


def _edge(kind: str) -> str:
    edges = {  # the hatching's colour as well
        "wait": "#8A929C", "data": "#00604A", "log": "#8A8000", "memory": "#8A3F66", "idle": "#B6BCC4",
    }  # fmt: skip
    return edges.get(kind, "#FFFFFF")


def _key(kind: str) -> Any:
    return Patch(
        facecolor=KIND_COLORS[kind],
        hatch=KIND_HATCHES.get(kind),
        edgecolor=_edge(kind) if kind in KIND_HATCHES else "#B6BCC4",
        lw=0.5,
        label=kind,
    )


def _ranks_text(timeline: Timeline, ranks: Sequence[int] | None) -> str:
    return plural(len(timeline.ranks if ranks is None else ranks), "rank")
