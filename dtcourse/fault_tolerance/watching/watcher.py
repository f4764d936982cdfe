"""Who reads the beats: a program outside the ranks, or a thread in some of them.

    watcher = Watcher(where, ranks=4)
    look = watcher.wait(timeout=60)     # until something is wrong, or all have left
    if look:
        print(look)                     # rank 2 is hung: it beats, and has made no step for 5.3 s ...
        look.reasons[0].rank            # 2

Silence is measured on the watcher's own clock, from the moment at which it has seen a new beat. So it has to look again
and again: who looks first after a minute knows nothing of that minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dtcourse.fault_tolerance.watching import sentences, verdicts
from dtcourse.fault_tolerance.watching.beat import Beat, unpacked
from dtcourse.fault_tolerance.watching.heartbeat import own_attempt
from dtcourse.fault_tolerance.watching.places import Place, Where, place_of
from dtcourse.fault_tolerance.watching.process import Process, State
from dtcourse.fault_tolerance.watching.verdicts import LEFT, Seen, Verdict

PATIENCE = (
    60.0  # seconds in which a rank must have begun to beat: launch gives as many to form the group
)
LOOK = 0.25  # seconds between two looks of `wait`


@dataclass(frozen=True)
class Look:
    """All ranks at one moment. True where something is wrong; its text says what.

    verdicts: of each rank, in the order of `ranks`
    blind:    why the beats could not be read, if so: then the verdicts are those of the last time
    """

    verdicts: list[Verdict]
    blind: str = ""

    @property
    def faults(self) -> list[Verdict]:
        """Of which something has to be done."""
        return [one for one in self.verdicts if one.is_fault]

    @property
    def reasons(self) -> list[Verdict]:
        """Of the faults those that the others come from: who waits for a dead rank is late because of it."""
        return verdicts.reasons(self.verdicts)

    @property
    def all_left(self) -> bool:
        """Whether nobody trains any more, and each rank has said so."""
        return all(one.kind == LEFT for one in self.verdicts)

    def __bool__(self) -> bool:
        return bool(self.faults)

    def __str__(self) -> str:
        blind = f" (the beats cannot be read: {self.blind})" if self.blind else ""
        return sentences.summary(self.verdicts) + blind


class Watcher:
    """Looks at the beats of some ranks.

    where:    as their Heartbeats have it
    ranks:    how many, or which; `watcher.ranks` may be changed when ranks leave and others join
    attempt:  beats of earlier starts of the job do not count; default: of this one under torchrun, else of any
    patience: seconds in which each rank must have begun to beat; None: any, as a busy machine may take minutes to
              start ranks, and who starts them hears of those that do not begin
    clock, state: seconds, and what a process does; a test gives its own
    """

    def __init__(
        self,
        where: Where | Place,
        ranks: int | Iterable[int],
        attempt: int | None = None,
        patience: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        state: Callable[[Process], State] = Process.state,
    ) -> None:
        self.place = place_of(where) if where is None or isinstance(where, str | Path) else where
        self.ranks = list(range(ranks)) if isinstance(ranks, int) else list(ranks)
        if not self.ranks:
            raise ValueError(
                "there is no rank to watch: ranks is how many there are, or their numbers"
            )
        self.attempt = own_attempt() if attempt is None else attempt
        self.patience, self._clock, self._state = patience, clock, state
        self._looked = clock()
        self._stuck: dict[int, float] = {}
        self._new: dict[
            int, tuple[Beat | None, float]
        ] = {}  # by rank: the last beat, and when it was new

    def look(self) -> Look:
        """What each rank is now."""
        blind, beats = "", {}
        try:
            beats = self._read()
        except (OSError, RuntimeError) as error:
            blind = str(error) or type(error).__name__
        now = self._clock()
        for rank in self.ranks:
            known, when = self._new.get(rank, (None, now))
            beat = beats.get(rank, known)
            if blind:  # nobody's silence could have been broken
                self._new[rank] = known, when + now - self._looked
            else:
                self._new[rank] = (known, when) if _same(beat, known) else (beat, now)
        self._looked = now
        seen = []
        for rank in self.ranks:
            beat, when = self._new[rank]
            if beat is not None and beat.attempt < self.attempt:
                beat = None  # it has not begun in this attempt yet
            silent = now - when
            asked = beat is not None and silent > beat.silence_limit
            state = self._state(beat.process) if asked and beat else "unknown"
            seen.append(Seen(rank, beat, silent, state))
        return Look(verdicts.judge(seen, self.patience, self._stuck, now), blind)

    def wait(self, timeout: float | None = None) -> Look:
        """Looks until something is wrong, all ranks have left, or `timeout` seconds are over; returns the last look."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            look = self.look()
            if look or look.all_left or (end is not None and time.monotonic() >= end):
                return look
            time.sleep(LOOK)

    def _read(self) -> dict[int, Beat]:
        """The beats that lie there. OSError or RuntimeError where the place cannot be reached."""
        found: dict[int, Beat] = {}
        for rank, data in self.place.read(self.ranks).items():
            with suppress(ValueError):
                found[rank] = unpacked(data)
        newest = max((beat.attempt for beat in found.values()), default=0)
        self.attempt = max(self.attempt, newest)
        return found


def _same(one: Beat | None, other: Beat | None) -> bool:
    """Whether it is the beat that was known already."""
    if one is None or other is None:
        return one is other
    return (one.process, one.attempt, one.number) == (other.process, other.attempt, other.number)
