"""What a recording says, before anybody concludes: its window, its critical path, its links, each rank's counters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

from dtcourse.events import Event, Timeline
from dtcourse.profiling.diagnosis.critical_path import Segment, critical_path
from dtcourse.profiling.diagnosis.matching import Matched, Message, is_own_message, waits

STANDING = ("data", "log")  # kinds of events in which the main lane computes nothing


@dataclass(frozen=True)
class Counters:
    """What a rank has counted besides its events.

    busy:       seconds in which it computed, or stood still by itself
    flops, bytes: what it computed, and moved for it; 0 where nobody counted
    recomputed: the part of `busy` in forwards that were done before
    """

    busy: float
    flops: float = 0.0
    bytes: float = 0.0
    recomputed: float = 0.0


@dataclass
class Evidence:
    """What the causes are looked for in.

    start, end: the window: from the first marked step (an event of kind "step" that lasts) to the last one's end; all
                of the recording where no step is marked
    steps:      how many steps are marked, on the rank that has most
    counters:   by rank; of the whole run
    """

    timeline: Timeline
    counters: Mapping[int, Counters]
    start: float = 0.0
    end: float = 0.0
    steps: int = 0
    matched: Matched = field(default_factory=Matched)

    @classmethod
    def of(cls, timeline: Timeline, accounts: Mapping[int, Any] | None) -> Evidence:
        """accounts: by rank, an emulated run's (dtcourse.emulation.Account)"""
        marked = [e for e in timeline.of(kind="step") if e.seconds > 0]
        of_rank: dict[int, int] = defaultdict(int)
        for event in marked:
            of_rank[event.rank] += 1
        within = marked or timeline.events
        start = min((e.start for e in within), default=0.0)
        end = max((e.end for e in within), default=0.0)
        found = cls(timeline, {}, start, end, max(of_rank.values(), default=0))
        found.matched = Matched.of(timeline)
        if accounts is None:
            found.counters = {rank: Counters(found.alone(rank)) for rank in timeline.ranks}
        else:
            found.counters = {
                rank: Counters(found.worked(rank, one), one.flops, one.moved, one.recomputed)
                for rank, one in accounts.items()
            }
        return found

    def worked(self, rank: int, account: Any) -> float:
        """Seconds of the whole run in which it computed, or stood still elsewhere than in its loader or its log."""
        standing = sum(end - start for start, end in self.standing(rank))
        return max(account.computed, account.computed + account.slept - standing)

    def alone(self, rank: int) -> float:
        """Seconds of the window in which its main lane waited for nobody, and neither for data nor for its log."""
        standing = sum(self.inside(start, end) for start, end in self.standing(rank))
        return self.seconds - self.waited(rank) - standing

    def standing(self, rank: int, kinds: tuple[str, ...] = STANDING) -> list[tuple[float, float]]:
        """When the rank's main lane was in events of these kinds; no second twice."""
        spans = Timeline(
            Event("", "idle", rank, e.start, e.end)
            for e in self.timeline.of(rank=rank, lane="main")
            if e.kind in kinds
        )
        return spans._intervals(rank, "idle")

    def waited(self, rank: int) -> float:
        """Seconds of the window in which it waited for others."""
        spans = Timeline(Event("", "wait", rank, start, end) for start, end in self.waits[rank])
        return sum(self.inside(start, end) for start, end in spans._intervals(rank, "wait"))

    @cached_property
    def waits(self) -> dict[int, list[tuple[float, float]]]:
        """By rank, when its main lane waited for others."""
        return waits(self.timeline)

    def inside(self, start: float, end: float) -> float:
        """How much of a span lies in the window."""
        return max(0.0, min(end, self.end) - max(start, self.start))

    @property
    def counted(self) -> bool:
        """Whether the ranks' operations were counted."""
        return any(one.flops > 0 for one in self.counters.values())

    @property
    def seconds(self) -> float:
        """The window's length."""
        return self.end - self.start

    @cached_property
    def path(self) -> list[Segment]:
        """The critical path through the window."""
        return critical_path(self.timeline, self.start, self.end, self.matched)

    def on_path(self, kind: str, rank: int | None = None) -> float:
        """Seconds of the path of one kind, of one rank or all."""
        return sum(s.seconds for s in self.path if s.kind == kind and rank in (None, s.rank))

    def computing_on_path(self, rank: int | None = None) -> float:
        """Seconds of the path in which a rank, or any, was on its main lane, and neither in its loader nor its log."""
        standing = self.standing_on_path(STANDING, ("compute",))
        mine = sum(standing.values()) if rank is None else standing.get(rank, 0.0)
        return self.on_path("compute", rank) - mine

    def standing_on_path(
        self, kinds: tuple[str, ...], segments: tuple[str, ...] = ("compute", "unknown")
    ) -> dict[int, float]:
        """By rank, seconds of the path in which its main lane was in events of these kinds.

        segments: only of these kinds of segments: of computing and of waits for what is not recorded
        """
        found = {}
        for rank in self.timeline.ranks:
            standing = self.standing(rank, kinds)
            found[rank] = sum(
                max(0.0, min(end, s.end) - max(start, s.start))
                for s in self.path
                if s.kind in segments and s.rank == rank
                for start, end in standing
            )
        return found

    @cached_property
    def runs(self) -> list[list[list[Segment]]]:
        """Collectives on the path that follow one another with nothing between: of each run, each one's segments."""
        found = []
        for is_collective, run in groupby(
            self.path, key=lambda s: s.kind == "collective" or s.whole is not None
        ):
            one: dict[int, list[Segment]] = {}
            for segment in run if is_collective else ():
                same = self.matched.collectives[id(segment.whole or segment.event)]
                one.setdefault(id(same), []).append(segment)
            if one:
                found.append(list(one.values()))
        return found

    @cached_property
    def is_pipeline(self) -> bool:
        """Whether ranks hand their work on: the program's own messages carry more than its collectives are about."""
        own = sum(e.bytes for e in self.timeline if is_own_message(e) and self.within(e.start))
        return own > 0 and own > sum(
            e.bytes for e in self.timeline.of(lane="collectives") if self.within(e.start)
        )

    def within(self, moment: float) -> bool:
        """Whether a moment lies in the window."""
        return self.start <= moment < self.end

    # --- links ---

    @cached_property
    def links(self) -> dict[tuple[int, int], list[Message]]:
        """The messages of each pair of ranks, one way."""
        found: dict[tuple[int, int], list[Message]] = defaultdict(list)
        for message in self.matched.messages:
            found[message.pair].append(message)
        return found

    @cached_property
    def message_cost(self) -> tuple[float, float]:
        """(alpha, beta) of a message: seconds = alpha + beta * bytes, a line through the quickest of each size.

        Where all messages have one size, nothing tells the two apart, and alpha is 0.
        """
        return line([(m.send.bytes, m.seconds) for m in self.matched.messages])

    def collective_cost(self, like: Any) -> tuple[float, float]:
        """The same, of collectives of one kind of which no messages are recorded, from the last rank's call on."""
        points, seen = [], set()
        for event in self.timeline.of(name=like.name, lane="collectives"):
            same = self.matched.collectives[id(event)]
            if id(same) not in seen:
                seen.add(id(same))
                points.append((event.bytes, event.end - max(e.start for e in same)))
        return line(points)


def line(points: list[tuple[int, float]]) -> tuple[float, float]:
    """(alpha, beta) through the quickest of the smallest size and of the largest; (0, ...) where there is one size."""
    points = [(size, seconds) for size, seconds in points if seconds > 0]
    if not points:
        return 0.0, 0.0
    small, large = min(p[0] for p in points), max(p[0] for p in points)
    quick = {size: min(s for n, s in points if n == size) for size in (small, large)}
    if small == large:
        return 0.0, quick[small] / small if small else 0.0
    beta = max(0.0, (quick[large] - quick[small]) / (large - small))
    return max(0.0, quick[small] - beta * small), beta
