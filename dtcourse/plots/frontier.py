"""What takes little time and little memory: a frontier, and a choice to try beside it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dtcourse.plots.interaction import Interactive
from dtcourse.plots.style import FAINT, INK, RANK_COLORS, Picture, figure, set_title
from dtcourse.plots.unit_axes import not_empty, unit_axis
from dtcourse.plots.units import bytes_text, seconds_text

ENDS = (("fastest", 0), ("leanest", -1))


def frontier(
    choices: Sequence[Any], *, limit: float | None = None, asked: Any = None, title: str | None = None
) -> Picture:  # fmt: skip
    """Seconds against bytes of choices to which none is better in both; what lies above their steps is worse than one.

    choices: the fastest first, each with `seconds` and `nbytes`: planner's Found.pareto()
    limit:   bytes that there are, as a line
    asked:   another one, with a mark of its own; how it differs from the fastest is written above the picture
    """
    not_empty(choices, "choices with seconds and nbytes")
    picture, ax = figure(
        description=title or "Seconds against bytes of the best choices", height=4.0
    )
    seconds, nbytes = ([getattr(each, name) for each in choices] for name in ("seconds", "nbytes"))
    ax.step(seconds, nbytes, where="post", color=FAINT, marker="")
    ax.plot(seconds, nbytes, color=RANK_COLORS[0], ls="", marker="o")
    for name, place in ENDS[: len(choices)]:
        ax.annotate(
            name, (seconds[place], nbytes[place]), xytext=(6, 6), textcoords="offset points",
            ha="left" if place == 0 else "right",
        )  # fmt: skip
    if limit is not None:
        ax.axhline(limit, color=INK, ls="--", lw=1.2)
        ax.annotate(
            f"{bytes_text(limit)} are there", (1.0, limit), xycoords=("axes fraction", "data"), xytext=(-4, 4),
            textcoords="offset points", ha="right",
        )  # fmt: skip
    if asked is not None:
        ax.plot([asked.seconds], [asked.nbytes], color=RANK_COLORS[1], marker="X", ms=11, ls="")
        title = f"{title + ': ' if title else ''}{_beside(asked, choices[0], limit)}"
    if title:
        set_title(picture, title)
    ax.set_xscale("log")
    ax.margins(0.08, 0.14)
    unit_axis(ax, "x", "seconds", True)
    unit_axis(ax, "y", "bytes", False)
    ax.set_xlabel("seconds of a step")
    ax.set_ylabel("memory of a device")
    return picture


def frontier_explorer(
    choices: Sequence[Any],
    ask: Callable[..., Any],
    controls: Mapping[str, Any],
    start: Mapping[str, Any],
    *,
    limit: float | None = None,
) -> Interactive:
    """The frontier, with controls that ask for another choice: what if?

    choices, limit: as for `frontier`
    ask:      called with the controls' values by name; returns a choice. A ValueError is shown under the controls
    controls: as for `interactive`, by name; start: what each stands at: planner's Found.controls()
    """

    def draw(**values: Any) -> Picture:
        return frontier(choices, limit=limit, asked=ask(**values))

    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=start[name]) for name in controls
    ]  # fmt: skip
    draw.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    return Interactive(draw, controls)


def _beside(asked: Any, best: Any, limit: float | None) -> str:
    """In words."""
    more = asked.seconds / best.seconds - 1
    fits = "" if limit is None or asked.nbytes <= limit else ", and does not fit"
    than = f"{abs(more):.0%} {'more' if more > 0 else 'less'} than the fastest"
    than = "as the fastest" if abs(more) < 0.005 else than
    return f"{seconds_text(asked.seconds)} ({than}), {bytes_text(asked.nbytes)}{fits}"
