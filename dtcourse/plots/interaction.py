"""Pictures to play with: controls over a picture that is redrawn in place.

In a notebook the picture is an ordinary output of the cell, updated when a control is moved, and the controls are a
second one. So a saved notebook, which has no kernel to answer the controls, still shows the picture; papermill and
nbclient run it like any cell, and what nbval compares has no measured number in it.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dtcourse.events import Timeline
from dtcourse.plots.style import Picture
from dtcourse.plots.timelines import timeline as draw_timeline
from dtcourse.plots.units import plain_text

_WIDGET = "application/vnd.jupyter.widget-view+json"
_ids = itertools.count()


class Interactive:
    """A picture with controls. As the last expression of a cell it shows both. Made by `interactive`.

    still: the picture of the start values (or one of its own), as a saved notebook keeps it
    values: what the controls stand at
    presets: {"name": values of some controls}: a button each, which sets those and puts the others where they started
    """

    def __init__(
        self,
        draw: Callable[..., Any],
        controls: Mapping[str, Any],
        *,
        still: Any = None,
        play: str | None = None,
        presets: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.draw, self.controls, self._still, self._play = draw, dict(controls), still, play
        self.presets = {name: dict(values) for name, values in (presets or {}).items()}
        accepted = inspect.signature(draw).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        for name in self.controls:
            if name not in accepted and not takes_any:
                raise ValueError(
                    f"there is a control {name!r}, and draw takes {', '.join(accepted) or 'nothing'}"
                )
        self.values = {
            name: _start(name, control, accepted.get(name))
            for name, control in self.controls.items()
        }
        for preset, values in self.presets.items():
            if strangers := values.keys() - self.controls.keys():
                raise ValueError(
                    f"the preset {preset!r} sets {min(strangers)!r}; the controls are {', '.join(self.controls)}"
                )
        self._start = dict(self.values)
        self.widgets: dict[str, Any] = {}
        self._handle: Any = None
        self._setting = False

    @property
    def still(self) -> Any:
        """The picture that a saved notebook keeps."""
        if self._still is None:
            self._still = self.draw(**self.values)
        return self._still

    def update(self, **values: Any) -> Any:
        """Sets controls from code, as a hand on them would, and returns the new picture."""
        for name, value in values.items():
            if name not in self.controls:
                raise ValueError(f"the controls are {', '.join(self.controls)}; got {name!r}")
            self.values[name] = value
            if name in self.widgets:
                self.widgets[name].value = value
        return self.draw(**self.values)

    def choose(self, preset: str) -> None:
        """What a preset's button does: sets all controls, and draws once."""
        self._setting = True  # else each control that moves would draw
        try:
            for name, value in (self._start | self.presets[preset]).items():
                self.widgets[name].value = value
        finally:
            self._setting = False
        self._moved(None)

    def __repr__(self) -> str:
        parts = (f"{_label(n)} ({_range_text(c)})" for n, c in self.controls.items())
        presets = f" Presets: {', '.join(self.presets)}." if self.presets else ""
        return f"Controls: {', '.join(parts)}.{presets} Run this cell to move them."

    def _ipython_display_(self) -> None:
        from IPython.display import display

        panel = self._panel()
        if panel is not None:
            bundle = panel._repr_mimebundle_()
            # What is left where there is no kernel: a sentence instead of the widget's class names.
            display({_WIDGET: bundle[_WIDGET], "text/plain": repr(self)}, raw=True)
        self._handle = display(self.still, display_id=f"dtcourse-picture-{next(_ids)}")

    def _panel(self) -> Any | None:
        """The controls as ipywidgets; None where those are not installed."""
        try:
            import ipywidgets
        except ImportError:
            return None
        self.widgets = {n: _widget(n, c, self.values[n]) for n, c in self.controls.items()}
        self._error = ipywidgets.HTML()
        for widget in self.widgets.values():
            widget.observe(self._moved, names="value")
        boxes = list(self.widgets.values())
        if self._play is not None:
            slider = self.widgets[self._play]
            player = ipywidgets.Play(
                min=slider.min, max=slider.max, value=slider.value, interval=1200,
                description=f"Play {_label(self._play)}s",
            )  # fmt: skip
            # Linked in the browser, so that playing goes on while a picture is drawn.
            ipywidgets.jslink((player, "value"), (slider, "value"))
            boxes.insert(0, player)
        buttons = []
        for preset in self.presets:
            button = ipywidgets.Button(description=preset, layout={"width": "max-content"})
            button.on_click(lambda _, preset=preset: self.choose(preset))
            buttons.append(button)
        row = ipywidgets.Layout(flex_flow="row wrap", grid_gap="6px")
        rows = [ipywidgets.Box(part, layout=row) for part in (buttons, boxes) if part]
        return ipywidgets.VBox([*rows, self._error])

    def _moved(self, _change: Any) -> None:
        if self._setting:
            return
        self.values = {name: widget.value for name, widget in self.widgets.items()}
        try:
            picture = self.draw(**self.values)
        # a combination that makes no sense: say so, keep the last picture
        except ValueError as error:
            self._error.value = f"<b>{type(error).__name__}</b>: {_escape(str(error))}"
            return
        self._error.value = ""
        if self._handle is not None:
            self._handle.update(picture)


def interactive(draw: Callable[..., Any], *, still: Any = None, **controls: Any) -> Interactive:
    """Controls over a picture; the last expression of a cell.

    draw: called with the controls' values by name; returns a Picture, a Table or anything that IPython can show
    still: what a saved notebook shows; default is draw's picture at the start values
    controls: (low, high) or (low, high, step): a slider, of whole numbers when both are whole; a list, or a dict of
        {"label": value}: a drop-down; True or False: a check box; an ipywidgets widget: itself
    A control starts at draw's default for it, else a slider in the middle and a list at its first entry.
    A ValueError from draw is shown under the controls, and the last picture stays.
    """
    if not controls:
        raise ValueError("give at least one control: interactive(draw, ranks=(1, 64))")
    return Interactive(draw, controls, still=still)


def timeline_explorer(timeline: Timeline, *, title: str | None = None) -> Interactive:
    """A timeline to zoom into: where its window starts, how much of it to show, which rank, which kind of event."""
    if not len(timeline):
        raise ValueError("the timeline has no events: launch(..., record=True) records them")
    kinds = list(dict.fromkeys(e.kind for e in timeline))

    def draw(
        zoom: int = 1, start_percent: float = 0, rank: Any = "all", kind: str = "all"
    ) -> Picture:
        window = timeline.span / zoom
        left = min(start_percent / 100 * timeline.span, timeline.span - window)
        return draw_timeline(
            timeline,
            ranks=None if rank == "all" else [rank],
            kinds=None if kind == "all" else [kind],
            start=left,
            end=left + window,
            title=title,
        )

    still = draw_timeline(timeline, title=title)
    return Interactive(
        draw,
        {
            "zoom": {f"{z}x": z for z in (1, 2, 4, 8, 16, 32, 64)},
            "start_percent": (0, 99),
            "rank": ["all", *timeline.ranks],
            "kind": ["all", *kinds],
        },
        still=still,
    )


def _start(name: str, control: Any, parameter: inspect.Parameter | None) -> Any:
    """The value that a control starts at."""
    if hasattr(control, "value") and hasattr(control, "observe"):
        return control.value
    default: Any = parameter.default if parameter is not None else inspect.Parameter.empty
    given = default is not inspect.Parameter.empty
    if isinstance(control, bool):
        return bool(default) if given else control
    if isinstance(control, tuple):
        low, high, step = _slider(name, control)
        if given:
            if not low <= default <= high:
                raise ValueError(f"draw's default {name}={default} is outside the slider {control}")
            return default
        middle = low + round((high - low) / 2 / step) * step
        return min(middle, high)
    options = _options(name, control)
    if given:
        if default not in options.values():
            raise ValueError(
                f"draw's default {name}={default!r} is not one of {list(options.values())}"
            )
        return default
    return next(iter(options.values()))


def _slider(name: str, control: tuple[float, ...]) -> tuple[float, float, float]:
    if len(control) not in (2, 3) or control[0] >= control[1]:
        raise ValueError(
            f"the slider {name} is (low, high) or (low, high, step) with low < high; got {control}"
        )
    low, high = control[:2]
    whole = all(isinstance(v, int) for v in control)
    step = control[2] if len(control) == 3 else (1 if whole else (high - low) / 100)
    if step <= 0:
        raise ValueError(f"the slider {name} has the step {step}; it must be positive")
    return low, high, step


def _options(name: str, control: Any) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if isinstance(control, Mapping):
        options = {str(k): v for k, v in control.items()}
    elif isinstance(control, Sequence) and not isinstance(control, str):
        options = {str(v): v for v in control}
    if any(value is None for value in options.values()):
        raise ValueError(
            f"the control {name} offers None, by which a drop-down means that nothing is chosen"
        )
    if options:
        return options
    raise ValueError(
        f"the control {name} is (low, high), a list, a dict, True or False, or a widget; got {control!r}"
    )


def _widget(name: str, control: Any, value: Any) -> Any:
    import ipywidgets

    style = {"description_width": "initial"}
    layout = ipywidgets.Layout(width="min(24em, 100%)")
    if isinstance(control, ipywidgets.Widget):
        return control
    if isinstance(control, bool):
        return ipywidgets.Checkbox(value=value, description=_label(name), indent=False)
    if isinstance(control, tuple):
        low, high, step = _slider(name, control)
        whole = all(isinstance(v, int) for v in (low, high, step))
        kind = ipywidgets.IntSlider if whole else ipywidgets.FloatSlider
        extra = {} if whole else {"readout_format": f".{max(0, math.ceil(-math.log10(step)))}f"}
        return kind(
            value=value, min=low, max=high, step=step, description=_label(name),
            style=style, layout=layout, **extra,
        )  # fmt: skip
    return ipywidgets.Dropdown(
        options=list(_options(name, control).items()), value=value, description=_label(name),
        style=style, layout=ipywidgets.Layout(width="max-content"),
    )  # fmt: skip


def _label(name: str) -> str:
    return name.replace("_", " ")


def _range_text(control: Any) -> str:
    if isinstance(control, bool):
        return "on or off"
    if isinstance(control, tuple):
        return f"{plain_text(control[0])} to {plain_text(control[1])}"
    if isinstance(control, Mapping):
        return ", ".join(map(str, control))
    if isinstance(control, Sequence):
        return ", ".join(map(str, control))
    return type(control).__name__


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", "<br>")
