"""A view of training while it runs: what each rank's `profiling.Monitor` says, redrawn in place.

    run = launch(train, 4, on_message=plots.live_monitor())

Plain HTML, updated a few times a second in the cell's output, so it needs no widget and a saved notebook keeps its
last state.
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable
from typing import Any

from dtcourse.plots.style import KIND_COLORS
from dtcourse.plural import plural

# A part of the step, and the kind of event whose colour it has on a timeline.
_PARTS = {
    "compute": "compute",
    "communication": "communication",
    "data": "data",
    "queueing": "wait",
}
_EVERY = 0.15  # seconds between two drawings, whatever the number of ranks


class LiveMonitor:
    """Takes the messages of launch's on_message. Messages that are no monitor's go on to `otherwise`."""

    def __init__(self, otherwise: Callable[[int, Any], None] | None = None) -> None:
        self.ranks: dict[int, dict[str, Any]] = {}
        self._otherwise, self._handle, self._drawn = otherwise, None, 0.0

    def __call__(self, rank: int, message: Any) -> None:
        """One message of one rank."""
        if not (isinstance(message, dict) and "monitor" in message):
            if self._otherwise is not None:
                self._otherwise(rank, message)
            return
        self.ranks[rank] = message["monitor"]
        now = time.monotonic()
        if self._handle is None or message["monitor"]["final"] or now - self._drawn > _EVERY:
            self._drawn = now
            self._show()

    def _show(self) -> None:
        from IPython.display import display

        bundle = {"text/plain": repr(self), "text/html": self._repr_html_()}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    @property
    def samples_per_second(self) -> float:
        """Of all ranks together, over each one's latest steps."""
        return sum(_rate(m, "samples") for m in self.ranks.values())

    @property
    def tokens_per_second(self) -> float:
        """Of all ranks together, over each one's latest steps."""
        return sum(_rate(m, "tokens") for m in self.ranks.values())

    def __repr__(self) -> str:
        steps = max((m["steps"] for m in self.ranks.values()), default=0)
        return f"Live monitor: {plural(len(self.ranks), 'rank')}, {plural(steps, 'step')}"

    def _repr_html_(self) -> str:
        # The page's own text colour is right on a light and on a dark page; only the bars are coloured.
        speed = f"{self.samples_per_second:,.0f} samples/s"
        if self.tokens_per_second:
            speed += f" · {self.tokens_per_second:,.0f} tokens/s"
        legend = " ".join(
            f'<span style="white-space:nowrap;margin-right:1em">{_box(KIND_COLORS[kind])} {part}</span>'
            for part, kind in _PARTS.items()
        )
        rows = "".join(_row(rank, self.ranks[rank]) for rank in sorted(self.ranks))
        return (
            f'<div style="max-width:46em"><div><b>{speed}</b></div><table style="width:100%">{rows}</table>'
            f'<div style="font-size:smaller">{legend}</div></div>'
        )


def live_monitor(otherwise: Callable[[int, Any], None] | None = None) -> LiveMonitor:
    """For launch(..., on_message=live_monitor()): throughput and each rank's split of the step, while it trains.

    otherwise: called as otherwise(rank, message) with messages that the function sends itself
    """
    return LiveMonitor(otherwise)


def _rate(message: dict[str, Any], what: str) -> float:
    return message[what] / message["seconds"] if message["seconds"] else 0.0


def _box(color: str) -> str:
    return f'<span style="display:inline-block;width:0.8em;height:0.8em;background:{color}"></span>'


def _row(rank: int, message: dict[str, Any]) -> str:
    total = message["seconds"] or 1.0
    parts = "".join(
        f'<div title="{part} {message[part] / total:.0%}" '
        f'style="width:{100 * message[part] / total:.1f}%;background:{KIND_COLORS[kind]}"></div>'
        for part, kind in _PARTS.items()
    )
    steps = f"{message['steps']}" + (f" of {message['total']}" if message["total"] else "")
    logged = ", ".join(f"{html.escape(k)} {v:.3g}" for k, v in message["logged"].items())
    milliseconds = 1e3 * total / max(1, message["recent"])
    return (
        f'<tr><td style="text-align:left;white-space:nowrap">rank {rank}</td>'
        f'<td style="width:50%"><div style="display:flex;height:1em">{parts}</div></td>'
        f'<td style="text-align:right;white-space:nowrap">{milliseconds:.1f} ms a step</td>'
        f'<td style="text-align:right;white-space:nowrap">step {steps}</td>'
        f'<td style="text-align:left">{logged}</td></tr>'
    )
