"""Schedules to play with: controls over what is simulated, and its picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from dtcourse.plots.interaction import Interactive
from dtcourse.plots.schedule_pictures import schedules
from dtcourse.plots.style import Picture


def schedule_explorer(
    play: Callable[..., Any], presets: Mapping[str, Mapping[str, Any]], **controls: Any
) -> Interactive:
    """A schedule's picture, its bubble rate and what each rank stores, with controls; a button for each preset.

    Where no kernel runs, the presets are seen, one under another.

    play: called with the controls' values by name; returns a simulation: with `timeline`, `name`, `bubble_rate` and
        `peak_memory`. A ValueError is shown under the controls
    presets: {"1F1B": values of some controls}; the others stand at play's defaults
    controls: as for `interactive`
    """

    @wraps(play)
    def draw(**values: Any) -> Picture:
        found = play(**values)
        return schedules(found, figures=True)

    still = schedules(
        {name: play(**values) for name, values in presets.items()},
        figures=True,
        description="Schedules: " + ", ".join(presets),
    )
    return Interactive(draw, controls, still=still, presets=presets)
