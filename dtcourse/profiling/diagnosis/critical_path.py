"""The critical path of a recorded run: the chain of work and messages over all ranks that its length comes from.

It is walked backward from the last moment. A rank that computed, computed: the path stays. A rank that waited, waited
for a message or a collective: the path goes along the message to the rank that sent it, or from a collective's end to
the rank that called it last. So each second of the window belongs to one segment, and shortening anything that is on no
segment gains nothing (Yang and Miller 1988, "Critical path analysis for the execution of parallel and distributed
programs").

What a rank waited for is what ended last during the wait. Where the recording has nothing that did, the wait itself is
on the path, as "unknown".
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from dtcourse.events import Event, Timeline
from dtcourse.profiling.diagnosis.matching import (
    COLLECTIVES,
    MESSAGES,
    Matched,
    is_own_message,
    waits,
)


@dataclass(frozen=True)
class Segment:
    """A piece of the path.

    kind:  "compute" (the rank's main lane, whatever it did there), "message", "collective" or "unknown"
    rank:  whose time it is; of a message the sender's
    event: the receive of a message, the collective, or None
    whole: of a message, the collective that it is a part of, or None
    """

    kind: str
    rank: int
    start: float
    end: float
    event: Event | None = None
    whole: Event | None = None

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.start

    @property
    def pair(self) -> tuple[int, int] | None:
        """Of a message: from rank to rank."""
        if self.kind != "message" or self.event is None:
            return None
        other = int(self.event.detail["peer"])
        received = self.event.name != "send"
        return (other, self.event.rank) if received else (self.event.rank, other)


def critical_path(timeline: Timeline, start: float, end: float, matched: Matched) -> list[Segment]:
    """The segments from `start` to `end`, in their order; none where the timeline is empty."""
    if not len(timeline):
        return []
    return _Walk(timeline, start, matched).back_from(end)


class _Walk:
    def __init__(self, timeline: Timeline, start: float, matched: Matched) -> None:
        self.start, self.matched = start, matched
        self.small = 1e-9 * timeline.span
        self.segments: list[Segment] = []
        self.waits = {
            rank: [wait for wait in of_rank if wait[1] - wait[0] > self.small]
            for rank, of_rank in waits(timeline).items()
        }
        self.ends: dict[tuple[int, str], list[Event]] = defaultdict(list)
        self.last: dict[int, float] = {}
        for event in timeline:
            rank = event.rank
            if event.lane == COLLECTIVES:
                self.ends[rank, "collective"].append(event)
            elif event.lane == MESSAGES:
                own = is_own_message(event)
                self.ends[rank, "message" if own else "part"].append(event)
            if event.lane == "main":
                self.last[rank] = max(self.last.get(rank, event.end), event.end)
        for events in self.ends.values():
            events.sort(key=lambda e: e.end)

    def back_from(self, end: float) -> list[Segment]:
        rank = max(self.last or {0: 0.0}, key=lambda r: (min(self.last.get(r, 0.0), end), -r))
        then: Callable[[], object] | None = lambda: self.main(rank, end)  # noqa: E731
        for _ in range(100_000):
            then = then() if then is not None else None  # type: ignore[assignment]
            if then is None:
                break
        return self.segments[::-1]

    def add(self, kind: str, rank: int, start: float, end: float, *events: Event | None) -> None:
        """One segment, as far as it lies in the window."""
        start = max(start, self.start)
        if end - start > self.small:
            self.segments.append(Segment(kind, rank, start, end, *events))

    def main(self, rank: int, until: float) -> Callable[[], object] | None:
        """The rank's main lane, back from `until` to the end of what it waited for last."""
        waited = self.waits[rank]
        place = bisect_left(waited, until + self.small, key=lambda w: w[1]) - 1
        began, ended = waited[place] if place >= 0 else (self.start, self.start)
        self.add("compute", rank, ended, until)
        if ended <= self.start + self.small:
            return None
        came = [self.ended_by(rank, kind, ended, after=began) for kind in ("collective", "message")]
        cause = max((e for e in came if e is not None), key=lambda e: e.end, default=None)
        if cause is None:
            self.add("unknown", rank, began, ended)
            return lambda: self.main(rank, began)
        if cause.lane == MESSAGES:
            return lambda: self.message(cause, ended, None)
        return lambda: self.collective(cause, ended)

    def ended_by(self, rank: int, kind: str, moment: float, after: float) -> Event | None:
        """What ended last until `moment`, and after `after`."""
        events = self.ends[rank, kind]
        place = bisect_left(events, moment + self.small, key=lambda e: e.end) - 1
        found = events[place] if place >= 0 else None
        return found if found is not None and found.end > after + self.small else None

    def message(
        self, event: Event, until: float, whole: Event | None
    ) -> Callable[[], object] | None:
        """Along a message, back to its sender; of a send that somebody waits for, back to its post."""
        matched = self.matched
        message = matched.of_receive.get(id(event)) or matched.of_send.get(id(event))
        if message is None or message.left >= until - self.small:
            self.add("unknown", event.rank, event.start, until)
            return self.before(event.rank, event.start, whole)
        sender, left = message.send.rank, message.left
        self.add("message", sender, left, until, event, whole)
        if left <= self.start:
            return None
        if left > message.send.start + self.small:  # it stood behind another one at the port
            kind = "message" if whole is None else "part"
            held = [
                e
                for e in self.ends[sender, kind]
                if e.name == "send" and abs(e.end - left) <= self.small
            ]
            if held:
                return lambda: self.message(held[0], left, whole)
        return self.before(sender, min(left, message.send.start), whole)

    def before(self, rank: int, moment: float, whole: Event | None) -> Callable[[], object] | None:
        """What let the rank post a message then: one that it had just received, or its own program."""
        if whole is None:
            return lambda: self.main(rank, moment)
        here = next((e for e in self.matched.collectives[id(whole)] if e.rank == rank), None)
        if here is None:
            return lambda: self.main(rank, moment)
        came = self.ended_by(rank, "part", moment, after=here.start)
        if came is not None and moment - came.end <= self.small:
            return lambda: self.message(came, came.end, here)
        self.add("compute", rank, here.start, moment)
        return self.called(here)

    def collective(self, event: Event, until: float) -> Callable[[], object] | None:
        """From a collective's end on one rank to whoever called it last, message by message where they are recorded."""
        last = self.ended_by(event.rank, "part", until, after=event.start)
        if last is not None and last.start >= event.start - self.small:
            return lambda: self.message(last, min(until, last.end), event)
        called_last = max(self.matched.collectives[id(event)], key=lambda e: (e.start, -e.rank))
        if called_last.start >= until:  # on clocks that do not agree
            called_last = event
        self.add("collective", called_last.rank, called_last.start, until, event)
        return self.called(called_last)

    def called(self, event: Event) -> Callable[[], object] | None:
        """What let the rank begin a collective: the one before it on the group's lane, or its own program."""
        if event.start <= self.start:
            return None
        before = self.ended_by(
            event.rank, "collective", event.start, after=event.start - 2 * self.small
        )
        if before is not None and before is not event:
            return lambda: self.collective(before, before.end)
        return lambda: self.main(event.rank, event.start)
