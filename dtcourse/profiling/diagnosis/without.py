"""How long a recorded run would have taken without some of its collectives: all ranks are played through once more.

A rank computes between two waits as long as it did. What it waits for is there as long after its send, or after the
last rank's call, as it was in the recording. All this is in the order of the recorded times, since nothing depends on
what came later. A collective that is taken out is waited for by nobody.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection

from dtcourse.events import Event
from dtcourse.profiling.diagnosis.evidence import Evidence
from dtcourse.profiling.diagnosis.matching import COLLECTIVES, is_own_message


def end_without(evidence: Evidence, removed: Collection[int]) -> float:
    """When the last step would have ended. removed: collectives, by the id() of their lists in `evidence.matched`."""
    return _Played(evidence, removed).end()


class _Played:
    def __init__(self, evidence: Evidence, removed: Collection[int]) -> None:
        self.evidence, self.matched, self.removed = evidence, evidence.matched, removed
        self.small = 1e-9 * evidence.timeline.span
        # By rank, its collectives, and the messages that are the program's own.
        self.on_lane: dict[int, list[Event]] = defaultdict(list)
        self.own: dict[int, list[Event]] = defaultdict(list)
        self.last: dict[int, float] = {}
        for event in evidence.timeline:
            if event.lane == COLLECTIVES:
                self.on_lane[event.rank].append(event)
            elif is_own_message(event):
                self.own[event.rank].append(event)
            if event.lane == "main" and event.end <= evidence.end + self.small:
                self.last[event.rank] = max(self.last.get(event.rank, event.end), event.end)
        for events in (*self.own.values(), *self.on_lane.values()):
            events.sort(key=lambda e: e.end)
        self.known: dict[int, float] = {}  # by the id() of an event, when it ends now
        # By rank, of each wait that is played: when it ended, and when it ends now.
        self.ended: dict[int, list[float]] = defaultdict(list)
        self.ends: dict[int, list[float]] = defaultdict(list)

    def end(self) -> float:
        """Plays all waits in the order in which they ended."""
        waits = [
            (ended, began, rank)
            for rank, spans in self.evidence.waits.items()
            for began, ended in spans
            if ended - began > self.small
        ]
        for ended, began, rank in sorted(waits):
            now = [self.now(rank, began)]
            causes = [
                *self.ended_at(ended, self.on_lane[rank]),
                *self.ended_at(ended, self.own[rank]),
            ]
            now += map(self.end_of, causes)
            if not causes:  # it waited for what is not recorded
                now.append(now[0] + ended - began)
            self.ended[rank].append(ended)
            self.ends[rank].append(max(now))
        return max(self.now(rank, moment) for rank, moment in self.last.items())

    def ended_at(self, moment: float, events: list[Event]) -> list[Event]:
        """Those of the events that ended just then."""
        first, last = (
            bisect_right(events, moment + sign * self.small, key=lambda e: e.end)
            for sign in (-1, 1)
        )
        return events[first:last]

    def now(self, rank: int, moment: float) -> float:
        """When the rank comes to what it did at that moment."""
        place = bisect_right(self.ended[rank], moment + self.small) - 1
        if place < 0:
            return moment
        return self.ends[rank][place] + max(0.0, moment - self.ended[rank][place])

    def end_of(self, event: Event) -> float:
        """When it ends now."""
        if id(event) not in self.known:
            of = self.end_of_collective if event.lane == COLLECTIVES else self.end_of_message
            self.known[id(event)] = of(event)
        return self.known[id(event)]

    def end_of_message(self, event: Event) -> float:
        message = self.matched.of_receive.get(id(event)) or self.matched.of_send.get(id(event))
        if message is None:
            return self.now(event.rank, event.start) + event.seconds
        sender = message.send.rank
        left = self.now(sender, message.send.start)
        if message.left > message.send.start + self.small:  # it stood behind another one
            left += message.left - message.send.start
        if event is message.send:
            return left + event.end - message.left
        asked = message.recv.start
        # What was there when it was asked for came earlier, when its send ended.
        waited = message.recv.end - asked > self.small
        arrived = left + (message.recv if waited else message.send).end - message.left
        return max(arrived, self.now(event.rank, asked))

    def end_of_collective(self, event: Event) -> float:
        same = self.matched.collectives[id(event)]
        if id(same) in self.removed:
            return 0.0
        called = max(map(self.start_of_collective, same))
        return called + event.end - max(one.start for one in same)

    def start_of_collective(self, event: Event) -> float:
        """When the rank has called it, and the one before it on the group's lane is done."""
        lane = self.on_lane[event.rank]
        place = bisect_right(lane, event.start + self.small, key=lambda e: e.end) - 1
        before = lane[place] if place >= 0 else None
        if before is not None and event.start - before.end <= self.small and before is not event:
            return max(self.end_of(before), self.now(event.rank, before.start))
        return self.now(event.rank, event.start)
