"""Who is in the next generation: decided in one place, when nobody's answer is missing.

Each worker of the running generation must have asked, or be gone: then all of them agree on who is left, and none is in
a collective of the old group. Those that wait to join, and those that are to leave, have the generation end after a
step. Ranks stay as they were; who is new takes a lost one's place.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import NamedTuple

from dtcourse.fault_tolerance.elastic.generations import Answer, JobsEnd, Question


class Generation(NamedTuple):
    """Who trained together, by rank, and from which step on."""

    number: int
    members: tuple[int, ...]
    step: int


class Roster:
    """The generations of a job. least, most: how many workers train.

    expected: who must ask, or be gone, before the next generation;  leavers: who is to leave
    """

    def __init__(self, end: JobsEnd, least: int, most: int | None) -> None:
        self.least, self.most = least, most
        self.generations: list[Generation] = []
        self.expected: set[int] = set()
        self.leavers: set[int] = set()
        self._end = end
        self._changed = self._finished = False

    def waiting(self, living: Iterable[int]) -> list[int]:
        """Those that ask and are in no generation."""
        outside = [worker for worker in living if worker not in self.expected]
        return [worker for worker in outside if self._end.question(worker) is not None]

    def decide(self, living: Iterable[int]) -> None:
        """Answers whom it can by now; has this generation end where somebody is to join it or to leave."""
        asking = {w: q for w in living if (q := self._end.question(w)) is not None}
        if self._finished:
            self._answer_all(asking, "finished")
            return
        outside = asking.keys() - self.expected
        self._answer_all(outside & self.leavers, "leave")
        if self.expected - asking.keys():
            self._end_generation(bool(outside - self.leavers))
            return
        if self.expected and all(asking[w].done for w in self.expected):
            self._finished = True
            return
        self._answer_all(self.expected & self.leavers, "leave")
        able = self._in_order(asking.keys() - self.leavers)
        if len(able) >= self.least:
            self._form(able[: self.most], asking)

    def _end_generation(self, somebody_joins: bool) -> None:
        room = self.most is None or len(self.expected) < self.most
        wanted = bool(self.expected & self.leavers) or (somebody_joins and room)
        if wanted and self.generations and not self._changed:
            self._end.ask_for_change(self.generations[-1].number)
            self._changed = True

    def _in_order(self, able: Set[int]) -> list[int]:
        """Those of the last generation by their ranks; new ones in the places of the lost, then at the end."""
        before = self.generations[-1].members if self.generations else ()
        new = sorted(able - set(before))
        places = [w if w in able else (new.pop(0) if new else None) for w in before]
        return [*(w for w in places if w is not None), *new]

    def _form(self, members: list[int], asking: dict[int, Question]) -> None:
        step = max((asking[w].step or 0 for w in members), default=0)
        self.generations.append(Generation(len(self.generations), tuple(members), step))
        self.expected, self._changed = set(members), False
        for worker in members:
            self._end.answer(worker, Answer(self.generations[-1].number, tuple(members)))

    def _answer_all(self, workers: Iterable[int], end: str) -> None:
        for worker in sorted(workers):
            self._end.answer(worker, Answer(-1, (), end))
            self.expected.discard(worker)
