"""Ranks that train, beat and meet with something, on a clock that is counted: what a watcher then has of each of them.

Their beats are made by the Progress that makes them in a real rank, and read by a real Watcher, once in a counted
second. No process is started: a rank is its place in the program, and the letter that /proc would show.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from torch.distributed import distributed_c10d

from dtcourse.fault_tolerance.watching import Look, Watcher
from dtcourse.fault_tolerance.watching.beat import Beat
from dtcourse.fault_tolerance.watching.process import Process, State
from dtcourse.fault_tolerance.watching.progress import Progress
from dtcourse.launch import deadlock, failures

PROGRAM, TICKS = "/job/train.py", 4  # ticks of the counted clock in an interval
# What of a beat the record has.
TOLD = ["number", "interval", "step", "idle", "since_step", "longest", "gap"]
TOLD += ["pausing", "paused", "pause_limit", "doing", "left"]

Place = tuple[str, bool]  # where a loop's thread is, in words; whether that is a wait for others


def _place(file: str, function: str, line: int) -> Place:
    """As a Heartbeat says it, by a loop's frames, innermost first."""
    frames = [(file, 1, function), (PROGRAM, line, "train")]
    return failures.where_in(frames), deadlock.waits_in(frames)


COMPUTES = _place("/job/model.py", "forward", 31)
REDUCES = _place(distributed_c10d.__file__, "all_reduce", 33)
ELSEWHERE = _place(distributed_c10d.__file__, "broadcast", 41)


@dataclass(frozen=True)
class Story:
    """What happens to some ranks.

    lengths:  seconds of the steps that all of them take
    odd:      the rank that does not come to the end of the next one; what: in which way (_meets)
    seconds:  from then until the record is made
    letter:   of the odd rank's process afterwards, as /proc has it; empty: there is none
    limit:    of a pause, in seconds
    stall:    (a step, seconds): in that one the odd rank is stopped for so long, and goes on
    peers:    how the others end a second later, as "raised RuntimeError"; empty: they wait
    """

    ranks: int
    interval: float
    lengths: tuple[float, ...]
    odd: int
    what: str
    seconds: float
    letter: str = "S"
    limit: float | None = None
    stall: tuple[int, float] = (-1, 0.0)
    peers: str = ""


class _Memory:
    """Where beats lie (watching/places.py)."""

    def __init__(self) -> None:
        self._last: dict[int, bytes] = {}

    def write(self, rank: int, data: bytes) -> None:
        self._last[rank] = data

    def read(self, ranks: Iterable[int]) -> dict[int, bytes]:
        return {rank: self._last[rank] for rank in ranks if rank in self._last}


@dataclass
class _Rank:
    number: int
    progress: Progress
    phase: int  # in which tick of each interval it beats
    letter: str = "S"
    place: Place = COMPUTES
    beats: int = 0
    left: str = ""


def play(story: Story) -> tuple[list[dict[str, Any]], Look]:
    """(of each rank what is left of it, what the course's own watcher says of them)."""
    return _Play(story).run()


class _Play:
    def __init__(self, story: Story) -> None:
        self.story, self.now, self.place = story, 0.0, _Memory()
        self._last: dict[int, Beat] = {}
        self.ranks = [
            _Rank(r, Progress(story.interval, self._clock), random.randrange(TICKS))
            for r in range(story.ranks)
        ]
        self.watcher = Watcher(
            self.place, story.ranks, attempt=0, clock=self._clock, state=self._state
        )

    def _clock(self) -> float:
        return self.now

    def _state(self, process: Process) -> State:
        letter = self.ranks[process.pid].letter
        return "gone" if letter in ("", "Z") else "stopped" if letter in "Tt" else "runs"

    def run(self) -> tuple[list[dict[str, Any]], Look]:
        story = self.story
        ends, at = [], 0.0
        for number, length in enumerate(story.lengths):
            at += length + (story.stall[1] if number == story.stall[0] else 0.0)
            ends.append(at)
        met = at + 0.2 * min(story.lengths, default=1.0)
        tick, look, done, first = 0, self.watcher.look(), 0, True
        while self.now < met + story.seconds:
            tick, self.now = tick + 1, (tick + 1) * story.interval / TICKS
            while done < len(ends) and ends[done] <= self.now:
                done += 1
                for rank in self.ranks:
                    rank.progress.step(done)
                    # Who was in all_reduce with its last beat, and is in compiled code now, would be nobody's guess.
                    silent = rank.number == story.odd and story.letter in ("R", "D")
                    rank.place = COMPUTES if silent else random.choice([COMPUTES, REDUCES])
            if self.now >= met and first:
                self._meets()
                first = False
            if story.peers and self.now >= met + 1:
                self._end([r for r in self.ranks if r.number != story.odd], story.peers)
            stalled = self._stalled(ends)
            for rank in self.ranks:
                if tick % TICKS == rank.phase and rank.letter == "S" and rank is not stalled:
                    self._beat(rank)
            if tick % max(1, round(TICKS / story.interval)) == 0:
                look = self.watcher.look()
        look = self.watcher.look()
        told = zip(self.ranks, look.verdicts, strict=True)
        return [self._told(rank, one.seen.silent) for rank, one in told], look

    def _stalled(self, ends: list[float]) -> _Rank | None:
        number, seconds = self.story.stall
        if number < 0 or not ends[number] - seconds <= self.now < ends[number]:
            return None
        return self.ranks[self.story.odd]

    def _meets(self) -> None:
        """What the odd rank meets with. From here on the others wait for it."""
        story, odd = self.story, self.ranks[self.story.odd]
        for rank in self.ranks:
            rank.place = REDUCES
        if story.what == "all leave":
            self._end(self.ranks, story.peers)
        elif story.what.startswith("raised "):
            self._end([odd], story.what)
        elif story.what == "pauses":
            odd.progress.pause(random.choice(["saving", "evaluating", "reading data"]), story.limit)
            odd.place = COMPUTES
        elif story.what == "waits elsewhere":
            odd.place = ELSEWHERE
        elif story.what == "computes":
            odd.place = COMPUTES
        else:
            assert story.what == "beats no more"
            odd.letter = story.letter

    def _end(self, ranks: list[_Rank], how: str) -> None:
        for rank in ranks:
            if not rank.left:
                rank.left = how
                self._beat(rank)
                rank.letter = ""

    def _beat(self, rank: _Rank) -> None:
        rank.progress.tick()
        rank.beats += 1
        reason, paused, limit = rank.progress.paused()
        beat = Beat(
            rank.number,
            rank.beats,
            Process("a machine", rank.number, 0),
            interval=self.story.interval,
            step=rank.progress.step_number,
            idle=rank.progress.idle(),
            since_step=rank.progress.since_step(),
            longest=rank.progress.longest,
            gap=rank.progress.gap,
            pausing=reason,
            paused=paused,
            pause_limit=limit,
            doing=rank.place[0],
            waits=rank.place[1],
            left=rank.left,
        )
        self.place.write(rank.number, beat.packed())
        self._last[rank.number] = beat

    def _told(self, rank: _Rank, silent: float) -> dict[str, Any]:
        beat = asdict(self._last[rank.number])
        return {
            "process": rank.letter,
            "silent": silent,
            "beat": {name: beat[name] for name in TOLD},
        }
