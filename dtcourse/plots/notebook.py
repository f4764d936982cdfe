"""What IPython shows for our types. Nothing is registered where no IPython is running."""

from __future__ import annotations

import sys
from typing import Any

from dtcourse.events import HasTimeline, Timeline
from dtcourse.plots.schedule_pictures import schedules
from dtcourse.plots.style import Picture
from dtcourse.plots.timelines import timeline
from dtcourse.plural import plural


def shell() -> Any | None:
    """The running IPython, or None."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def register() -> bool:
    """Lets a Timeline, or what has one, draw itself as the last expression of a cell.
    Returns whether there was an IPython to tell.
    """
    ip = shell()
    if ip is None:
        return False
    formatters = ip.display_formatter.formatters
    # The inline backend registers Figure, with a crop that makes sizes differ from cell to cell; ours goes first.
    formatters["image/png"].for_type(Picture, lambda picture: picture._repr_png_())
    formatters["image/png"].for_type(Timeline, lambda events: timeline(events)._repr_png_())
    formatters["image/png"].for_type(HasTimeline, lambda one: schedules(one)._repr_png_())
    formatters["text/plain"].for_type(Timeline, _timeline_text)
    return True


def _timeline_text(events: Timeline, printer: Any, cycle: bool) -> None:
    # Nothing measured: a saved notebook is compared by this text.
    ranks = len(events.ranks)
    printer.text(f"Timeline of {plural(ranks, 'rank')}")
