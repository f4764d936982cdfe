"""What happened, when, on which rank: the one Event and Timeline that all of dtcourse shares.

A rank records spans (`with span("forward", "compute"): ...`) while recording is on; launch collects them into one
Timeline; the simulator predicts a Timeline of the same type, so that measured and predicted can be laid side by side.

One clock: `time.monotonic`, which Linux and macOS count from the machine's start, so all processes of one machine
read the same clock. `Timeline.shifted` aligns several machines' ranks. An emulated cluster has its own (`use_clock`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import singledispatch
from pathlib import Path
from typing import Any, ClassVar

from dtcourse.plural import plural

KINDS = ("step", "compute", "communication", "wait", "data", "log", "memory", "idle")


@dataclass(frozen=True, slots=True)
class Event:
    """One span of one rank's time.

    name:   what was done ("forward", "all_reduce")
    kind:   one of KINDS
    start, end: seconds on the clock (`now`); equal for an instant
    bytes:  bytes moved or allocated by it, 0 where that makes no sense
    lane:   what ran it, where one rank does several things at once ("main", "network", a CUDA stream)
    detail: anything else worth keeping (a peer, a bucket's number); must survive JSON
    """

    name: str
    kind: str
    rank: int
    start: float
    end: float
    bytes: int = 0
    lane: str = "main"
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


class Timeline:
    """Events of all ranks on one clock. `dtcourse.plots` gives it its picture in a notebook."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events: list[Event] = sorted(events, key=lambda e: (e.start, e.rank, -e.end))

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __repr__(self) -> str:
        ranks = len(self.ranks)
        return f"Timeline({plural(len(self), 'event')}, {plural(ranks, 'rank')}, {self.span * 1e3:.1f} ms)"

    @property
    def ranks(self) -> list[int]:
        """The ranks that have events, in order."""
        return sorted({e.rank for e in self.events})

    @property
    def start(self) -> float:
        """When the first event started."""
        return min((e.start for e in self.events), default=0.0)

    @property
    def span(self) -> float:
        """Seconds from the first event's start to the last event's end."""
        return max((e.end for e in self.events), default=0.0) - self.start

    def of(
        self,
        *,
        rank: int | None = None,
        kind: str | None = None,
        name: str | None = None,
        lane: str | None = None,
    ) -> Timeline:
        """The events that match everything given."""
        given = {"rank": rank, "kind": kind, "name": name, "lane": lane}
        wanted = [(key, value) for key, value in given.items() if value is not None]
        return Timeline(e for e in self.events if all(getattr(e, k) == v for k, v in wanted))

    def order(self, rank: int, kind: str | None = None) -> list[str]:
        """Names of one rank's events in the order in which they started."""
        return [e.name for e in self.of(rank=rank, kind=kind)]

    def busy(self, rank: int, kind: str) -> float:
        """Seconds in which the rank had at least one event of that kind under way (no second counted twice)."""
        return _length(self._intervals(rank, kind))

    def overlap(self, rank: int, kind_a: str, kind_b: str) -> float:
        """Seconds in which the rank did both at once."""
        a, b = self._intervals(rank, kind_a), self._intervals(rank, kind_b)
        return _length(a) + _length(b) - _length(_merge(a + b))

    def exposed(self, rank: int) -> float:
        """Seconds of communication that no computation hides."""
        return self.busy(rank, "communication") - self.overlap(rank, "communication", "compute")

    def shifted(self, seconds: float | None = None) -> Timeline:
        """The same events with `seconds` added to every time; by default so that the first one starts at 0."""
        by = -self.start if seconds is None else seconds
        return Timeline(replace(e, start=e.start + by, end=e.end + by) for e in self.events)

    def to_chrome_trace(self) -> dict[str, Any]:
        """For chrome://tracing and Perfetto: a process a rank, a thread a lane, times in microseconds."""
        origin = self.start
        trace: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
            for rank in self.ranks
        ]
        trace += [
            {"ph": "X", "name": e.name, "cat": e.kind, "pid": e.rank, "tid": e.lane}
            | {"ts": (e.start - origin) * 1e6, "dur": e.seconds * 1e6}
            | {"args": {"bytes": e.bytes, **e.detail}}
            for e in self.events
        ]
        return {"traceEvents": trace, "displayTimeUnit": "ms"}

    def save(self, path: str | Path) -> None:
        """Writes the events as JSON, all or nothing."""
        partial = Path(f"{path}.partial")
        partial.write_text(json.dumps([asdict(e) for e in self.events]))
        partial.replace(path)

    @classmethod
    def load(cls, path: str | Path) -> Timeline:
        """Reads what `save` wrote."""
        return cls(Event(**e) for e in json.loads(Path(path).read_text()))

    def _intervals(self, rank: int, kind: str) -> list[tuple[float, float]]:
        return _merge([(e.start, e.end) for e in self.events if e.rank == rank and e.kind == kind])


class HasTimeline:
    """What a notebook shows by its Timeline, once dtcourse.plots is loaded. `timeline_of` finds that.

    time_unit: in what its times are
    """

    time_unit: ClassVar[str] = "seconds"


@singledispatch
def timeline_of(thing: Any) -> Timeline:
    """The Timeline of what has one as its attribute (a launch's Run, a Simulation), or is one.

    A type whose Timeline has to be made first registers how: `@timeline_of.register`.

    Raises ValueError for anything else.
    """
    found = thing if isinstance(thing, Timeline) else getattr(thing, "timeline", None)
    if not isinstance(found, Timeline):
        raise ValueError(f"{type(thing).__name__} has no timeline; a launch with record=True has.")
    return found


def _merge(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Overlapping intervals joined into one."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _length(intervals: list[tuple[float, float]]) -> float:
    return sum(end - start for start, end in intervals)


# --- the clock -------------------------------------------------------------------------------------------------

_clock: Callable[[], float] = time.monotonic
changes = 0  # of what hears of messages: whoever asked once who does, asks again when this is another number


def now() -> float:
    """The time that events carry, in seconds: the machine's monotonic clock, or the emulated cluster's."""
    return _clock()


def use_clock(clock: Callable[[], float]) -> None:
    """From here on, events of this process carry the times of this clock. An emulated cluster brings its own."""
    global _clock
    _clock = clock
    changed()


def changed() -> None:
    """A clock, a recorder or a counter of messages has come or gone."""
    global changes
    changes += 1


# --- recording, inside a rank ---------------------------------------------------------------------------------


class Recorder:
    """Collects the events of this process. Safe to add to from several threads."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._events: list[Event] = []
        self._lock = threading.Lock()

    def add(self, name: str, kind: str, start: float, end: float, **more: Any) -> None:
        """Records one event of this rank. ValueError for a kind that is not one of KINDS."""
        if kind not in KINDS:
            raise ValueError(f"an event's kind is one of {', '.join(KINDS)}; got {kind!r}")
        with self._lock:
            self._events.append(Event(name, kind, self.rank, start, end, **more))

    @property
    def events(self) -> list[Event]:
        """What has been recorded so far."""
        with self._lock:
            return list(self._events)


_recorder: Recorder | None = None


def start_recording(rank: int) -> Recorder:
    """Turns recording on in this process. launch(record=True) does it in every rank."""
    global _recorder
    _recorder = Recorder(rank)
    changed()
    return _recorder


def stop_recording() -> list[Event]:
    """Turns recording off and returns what was recorded."""
    global _recorder
    events = _recorder.events if _recorder else []
    _recorder = None
    changed()
    return events


def recording() -> bool:
    """Whether this process records."""
    return _recorder is not None


def add(name: str, kind: str, start: float, end: float, **more: Any) -> None:
    """Records a span whose times are known; does nothing while recording is off. See Event for `more`."""
    if _recorder is not None:
        _recorder.add(name, kind, start, end, **more)


def instant(name: str, kind: str = "step", **more: Any) -> None:
    """Records a moment."""
    moment = now()
    add(name, kind, moment, moment, **more)


@contextmanager
def span(name: str, kind: str = "compute", **more: Any) -> Iterator[None]:
    """Records what runs inside it; costs next to nothing while recording is off.

    On a GPU the work inside is only queued when the span ends: call `device.synchronize()` inside it where the
    span must hold the work itself.
    """
    if _recorder is None:
        yield
        return
    start = now()
    try:
        yield
    finally:
        add(name, kind, start, now(), **more)
