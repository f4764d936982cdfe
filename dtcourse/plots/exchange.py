"""Messages between ranks, step by step: what each rank holds, and what travels to change it.

It draws what it is given; a lesson gives it the messages and buffers that a real run recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from dtcourse.plots.interaction import Interactive
from dtcourse.plots.message_data import Chunk, Message, State, as_chunk, frames_of, readable
from dtcourse.plots.style import (
    FAINT,
    INK,
    PAPER,
    Picture,
    darker,
    figure,
    lighter,
    rank_color,
    text_on,
)
from dtcourse.plots.units import bytes_text
from dtcourse.plural import plural

_ROW = 1.25  # height of a rank's row, in widths of a cell of one letter


def message_grid(
    messages: Sequence[Message],
    states: Sequence[State],
    *,
    columns: int | None = None,
    step_names: Sequence[str] | None = None,
    title: str | None = None,
) -> Picture:
    """A panel for the start and one for each step: arrows for its messages, buffers as they are after it.

    states: over time: before step 0, after step 0, after step 1, ...; each is a list over ranks of lists of cells
    step_names: of the steps; default "step 1", "step 2", ...
    columns: panels in a row
    Where a text is longer than five letters, every cell shows the number of its contributions instead.
    """
    frames = frames_of(messages, states)
    states = readable(states)
    names = _names(step_names, len(states) - 1)
    units_wide, units_high = _size(messages, states)
    columns = columns or max(1, min(len(frames), int(9.4 / (0.22 * units_wide))))
    columns = min(columns, len(frames))
    rows = -(-len(frames) // columns)
    width = min(9.6, columns * 0.42 * units_wide + 0.4)
    scale = (width - 0.4) / columns / units_wide  # inches of one unit
    picture, axes = figure(
        rows,
        columns,
        width=max(width, 4.0),
        height=rows * (units_high * scale + 0.42) + (0.45 if title else 0.1),
        title=title,
        description=title
        or f"Messages between {plural(len(states[0]), 'rank')} in {plural(len(frames) - 1, 'step')}",
        squeeze=False,
    )
    for i, ax in enumerate(axes.flat):
        ax.set_axis_off()
        if i < len(frames):
            _panel(ax, frames[i], states[i], messages, states, scale, labels=False)
            ax.set_title(names[i], fontsize=9.5, loc="left")
    return picture


def message_step(
    messages: Sequence[Message],
    states: Sequence[State],
    step: int,
    *,
    step_names: Sequence[str] | None = None,
    title: str | None = None,
) -> Picture:
    """One step, large, with what each message carries. step: 0 is the start, 1 the first step."""
    frames = frames_of(messages, states)
    if not 0 <= step < len(frames):
        raise ValueError(f"step is 0 (the start) to {len(frames) - 1}; got {step}")
    states = readable(states)
    units_wide, units_high = _size(messages, states, labels=True)
    scale = min(0.62, 7.6 / units_wide)
    picture, ax = figure(
        width=max(4.5, units_wide * scale + 0.4),
        height=units_high * scale + 0.5 + (0.4 if title else 0),
        title=title,
        description=title or f"Messages between {plural(len(states[0]), 'rank')}, step {step}",
    )
    ax.set_axis_off()
    _panel(ax, frames[step], states[step], messages, states, scale, labels=True)
    ax.set_title(_names(step_names, len(states) - 1)[step], loc="left")
    return picture


def message_stepper(
    messages: Sequence[Message],
    states: Sequence[State],
    *,
    step_names: Sequence[str] | None = None,
    title: str | None = None,
) -> Interactive:
    """The steps one at a time, with a slider and a play button; without a kernel, all of them (`message_grid`)."""
    last = len(frames_of(messages, states)) - 1

    def draw(step: int = 0) -> Picture:
        return message_step(messages, states, step, step_names=step_names, title=title)

    still = message_grid(messages, states, step_names=step_names, title=title)
    return Interactive(draw, {"step": (0, last)}, still=still, play="step")


def _names(step_names: Sequence[str] | None, steps: int) -> list[str]:
    if step_names is None:
        return ["start", *(f"step {t}" for t in range(1, steps + 1))]
    if len(step_names) != steps:
        raise ValueError(f"{len(step_names)} step_names for {plural(steps, 'step')}")
    return ["start", *step_names]


def _longest(states: Sequence[State]) -> int:
    return max((len(c.text) for s in states for r in s for c in map(as_chunk, r) if c), default=1)


def _cell_width(states: Sequence[State]) -> float:
    return max(1.0, 0.41 * _longest(states))


def _bulge(distance: int) -> float:
    """How far the arrow over `distance` rows reaches out."""
    return 0.35 + 0.3 * distance


def _sides(messages: Sequence[Message]) -> tuple[float, float]:
    """Room left and right of the cells: upward arrows run on the left, downward ones on the right."""
    up = [m.src - m.dst for m in messages if m.src > m.dst]
    down = [m.dst - m.src for m in messages if m.dst > m.src]
    return (_bulge(max(up)) if up else 0.0), (_bulge(max(down)) if down else 0.0)


def _size(
    messages: Sequence[Message], states: Sequence[State], labels: bool = False
) -> tuple[float, float]:
    """Width and height of a panel in units."""
    left, right = _sides(messages)
    extra = _label_room(messages) if labels else 0.0
    chunks = max(len(r) for s in states for r in s)
    width = (
        left + right + chunks * _cell_width(states) + 1.5 + extra * bool(right) + extra * bool(left)
    )
    return width, len(states[0]) * _ROW + 0.2


def _label_room(messages: Sequence[Message]) -> float:
    return 0.25 * max((len(_words(m)) for m in messages), default=0)


def _words(message: Message) -> str:
    if message.label or not message.bytes:
        return message.label
    return bytes_text(message.bytes)


def _panel(
    ax: Axes,
    arrows: Sequence[Message],
    state: State,
    messages: Sequence[Message],
    states: Sequence[State],
    scale: float,
    *,
    labels: bool,
) -> None:
    high = _size(messages, states, labels)[1]
    left, right = _sides(messages)
    extra = _label_room(messages) if labels else 0.0
    cell = _cell_width(states)
    chunks = max(len(r) for s in states for r in s)
    # Around the cells: the rank's number left of them, then room for the arrows upward; downward ones on the right.
    x0, x1 = 0.0, chunks * cell
    ax.set_xlim(x0 - 1.25 - left - extra * bool(left), x1 + 0.25 + right + extra * bool(right))
    ax.set_ylim(high - 0.1 - _ROW / 2, -_ROW / 2 - 0.1)
    ax.set_aspect("equal")
    letters = cell / 0.41 if cell > 1 else max(2, _longest(states))
    size = float(np.clip(scale * 72 * cell / letters / 0.74, 5.0, 11.0))
    landed = {
        (m.dst, column)
        for m in arrows
        if m.chunk is not None
        for column in ([m.chunk] if isinstance(m.chunk, int) else m.chunk)
    }
    for rank, buffer in enumerate(state):
        y = rank * _ROW
        color = rank_color(rank)
        ax.text(
            -0.62, y, str(rank), ha="center", va="center_baseline", fontweight="bold",
            fontsize=max(size, 7.5), color=text_on(color),
            bbox={"boxstyle": "circle,pad=0.22", "facecolor": color, "edgecolor": "none"},
        )  # fmt: skip
        for i, content in enumerate(map(as_chunk, buffer)):
            _draw_cell(ax, i * cell, y, cell, content, size, (rank, i) in landed)
    for m in arrows:
        _draw_arrow(ax, m, x0 - 1.05, x1 + 0.12, _words(m) if labels else "", size)


def _draw_cell(
    ax: Axes, x: float, y: float, width: float, cell: Chunk | None, size: float, landed: bool
) -> None:
    outline: dict[str, Any] = (
        {"edgecolor": INK, "lw": 2.0, "zorder": 3} if landed else {"edgecolor": FAINT, "lw": 0.7}
    )
    if cell is None:
        ax.add_patch(
            Rectangle((x, y - 0.5), width, 1, facecolor="none", edgecolor="#B6BCC4", lw=0.7, ls=":")
        )
        return
    tint = lighter(rank_color(cell.ranks[0]), 0.78) if len(cell.ranks) == 1 else PAPER
    ax.add_patch(Rectangle((x, y - 0.5), width, 1, facecolor=tint, lw=0))
    if cell.ranks:  # stripes along the bottom: who is in here
        part = width / len(cell.ranks)
        for i, rank in enumerate(cell.ranks):
            ax.add_patch(
                Rectangle((x + i * part, y + 0.24), part, 0.26, facecolor=rank_color(rank), lw=0)
            )
    ax.add_patch(Rectangle((x, y - 0.5), width, 1, facecolor="none", **outline))
    ax.text(
        x + width / 2, y - (0.12 if cell.ranks else 0), cell.text, ha="center",
        va="center_baseline", fontsize=size, color=INK, zorder=4,
    )  # fmt: skip


def _draw_arrow(ax: Axes, m: Message, left: float, right: float, words: str, size: float) -> None:
    down = m.dst > m.src
    x = right if down else left
    sign = 1 if down else -1
    distance = abs(m.dst - m.src)
    # The tail leaves below the middle of its row and the head arrives above it, so the two of a rank stay apart.
    y0, y1 = m.src * _ROW + 0.22 * sign, m.dst * _ROW - 0.22 * sign
    reach = _bulge(distance) - 0.15
    ax.add_patch(
        FancyArrowPatch(
            (x, y0), (x, y1), arrowstyle="-|>", mutation_scale=9, lw=1.5, zorder=5,
            color=darker(rank_color(m.src), 3.0), shrinkA=0, shrinkB=0,
            # A quadratic curve passes at half of its control point's distance; minus, since y grows downward.
            connectionstyle=f"arc3,rad={-2 * reach / abs(y1 - y0)}",
        )
    )  # fmt: skip
    if words:
        ax.text(
            x + sign * (reach + 0.12), (y0 + y1) / 2, words, fontsize=min(size, 9),
            ha="left" if down else "right", va="center", color=INK, zorder=6,
        )  # fmt: skip
