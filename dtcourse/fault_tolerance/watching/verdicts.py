"""What a rank is, by its last beat, how long it has been silent, and what /proc says of its process.

    silent for two intervals, and 2 s   its process is gone: dead. In state T: stopped. On a machine whose /proc the
                                        watcher does not see: dead or stopped. There and running: silent, which is no
                                        fault yet, as a busy machine may give the thread that beats no turn
    no step for three of its longest    hung, if that is more than the floor; before a first step nothing is said. So is
                                        who runs without a beat for three times as long as it ever took for anything

A rank that hangs has company: soon all others wait for it. Late are then all, and to be named is one. Whoever waits
(by the stack of its loop) waits rightly as long as some rank that may be the reason is not late itself: it is announced
to pause, before its first step, or has made no step since about when the wait began. And where that one has just
moved on, the last beat of who waits may be older: it gets two more intervals to say so. `reasons` holds the faults that
do not wait; where all wait, those that wait at another place than most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dtcourse.fault_tolerance.watching.beat import Beat
from dtcourse.fault_tolerance.watching.process import State

RUNS, STARTING, PAUSED, LEFT, ABSENT = "running", "starting", "pausing", "left", "absent"
SILENT, WAITS = "silent", "waiting"
DEAD, STOPPED, DEAD_OR_STOPPED, HUNG = "dead", "stopped", "dead or stopped", "hung"
NEVER = "never began"
FAULTS = (DEAD, STOPPED, DEAD_OR_STOPPED, HUNG, NEVER)


@dataclass(frozen=True)
class Seen:
    """What a watcher knows of one rank.

    beat:   its last one; None where none has come
    silent: seconds on the watcher's clock since that one was new, or since the watcher began
    state:  of its process
    """

    rank: int
    beat: Beat | None
    silent: float
    state: State = "unknown"


@dataclass(frozen=True)
class Verdict:
    """One rank, judged. kind: see above; seen: by what."""

    kind: str
    seen: Seen

    @property
    def rank(self) -> int:
        """Which."""
        return self.seen.rank

    @property
    def is_fault(self) -> bool:
        """Whether something has to be done."""
        return self.kind in FAULTS

    @property
    def waits(self) -> bool:
        """Whether it beats and waits for other ranks."""
        beat = self.seen.beat
        return self.kind in (RUNS, WAITS, HUNG) and beat is not None and beat.waits

    @property
    def step(self) -> int | None:
        """The last step that it has done, as far as it has said."""
        return self.seen.beat.step if self.seen.beat else None

    @property
    def idle(self) -> float:
        """Seconds since that step, those since the last beat included."""
        return self.seen.silent + (self.seen.beat.idle if self.seen.beat else 0.0)

    @property
    def since_step(self) -> float:
        """The same, pauses and all."""
        return self.seen.silent + (self.seen.beat.since_step if self.seen.beat else 0.0)

    @property
    def since(self) -> float:
        """For how many seconds it has been what it is: silent, or without a step."""
        return self.idle if self.kind in (RUNS, WAITS, HUNG) else self.seen.silent

    @property
    def pid(self) -> int | None:
        """Its process's number on its own machine."""
        return self.seen.beat.process.pid if self.seen.beat else None

    @property
    def stacks(self) -> str:
        """Of all its threads, where it beats and is late; no other rank could say."""
        return self.seen.beat.stacks if self.seen.beat and self.kind in (HUNG, WAITS) else ""


def judge(
    seen: Sequence[Seen], patience: float | None, stuck: dict[int, float], now: float
) -> list[Verdict]:
    """All ranks, judged together.

    patience: seconds in which a rank must have begun to beat; None: any
    stuck:    since when a rank is late and waits for nobody who may come; kept here from one look to the next
    now:      on the watcher's clock
    """
    judged = [Verdict(_kind(one, patience), one) for one in seen]
    late = [one for one in judged if one.kind == HUNG and one.waits]
    for rank in {one.rank for one in judged} - {
        one.rank for one in late if not _awaits(one, judged)
    }:
        stuck.pop(rank, None)
    for one in late:
        if not _awaits(one, judged):
            stuck.setdefault(one.rank, now)
    yet = {one.rank for one in late if now - stuck.get(one.rank, now) <= _limit(one)}
    return [replace(one, kind=WAITS) if one.rank in yet else one for one in judged]


def _limit(verdict: Verdict) -> float:
    return verdict.seen.beat.silence_limit if verdict.seen.beat else 0.0


def _kind(seen: Seen, patience: float | None) -> str:
    """What one rank is, whatever the others do."""
    beat = seen.beat
    if beat is None:
        return NEVER if patience is not None and seen.silent > patience else ABSENT
    if beat.left:
        return LEFT
    if seen.silent > beat.silence_limit:
        return _silent(seen, beat)
    if beat.is_late:
        return HUNG
    if beat.pausing:
        return PAUSED
    return STARTING if beat.step is None else RUNS


def _silent(seen: Seen, beat: Beat) -> str:
    if seen.state == "runs":
        if beat.pausing:
            late = beat.pause_limit is not None and beat.paused + seen.silent > beat.pause_limit
        else:  # before a first step it may load for minutes, in compiled code
            late = beat.step is not None and seen.silent > 3 * max(
                beat.gap, beat.floor, *beat.longest
            )
        return HUNG if late else SILENT
    return {"gone": DEAD, "stopped": STOPPED, "unknown": DEAD_OR_STOPPED}[seen.state]


def _awaits(late: Verdict, all_of_them: Sequence[Verdict]) -> bool:
    """Whether a rank may still come for which this one waits."""
    limit = late.seen.beat.step_limit if late.seen.beat else None
    return any(
        other.kind in (STARTING, PAUSED, SILENT, ABSENT)
        or (other.kind == RUNS and limit is not None and other.since_step >= limit / 2)
        for other in all_of_them
    )


def reasons(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Of the faults those that the others come from."""
    faults = [one for one in verdicts if one.is_fault]
    own = [one for one in faults if not one.waits]
    if own or not faults:
        return own
    places: Mapping[tuple[str, int | None], int] = Counter(_place(one) for one in faults)
    most = max(places.values())
    crowd = [place for place, count in places.items() if count == most]
    apart = [one for one in faults if _place(one) != crowd[0]]
    return apart if len(crowd) == 1 and apart else faults


def _place(verdict: Verdict) -> tuple[str, int | None]:
    """Where in the program a rank waits."""
    return (verdict.seen.beat.doing if verdict.seen.beat else ""), verdict.step
