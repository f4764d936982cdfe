"""What happened to a run, line by line, and what its steps were worth.

    seconds  step  who       what
       0.00     0  recovery  starts 4 ranks, without a checkpoint
       1.21    47  monkey    SIGKILL to rank 2
       1.24    47  recovery  rank 2 of 4 was killed by SIGKILL
       1.24    47  recovery  starts 4 ranks, from the checkpoint after step 40

The ranks tell of their steps and of what they did by `tell_step` and `tell`, over launch's messages; outside a launch
both do nothing. The rest the launcher's side writes down itself.

Goodput is the share of all time that went into steps that count: of a step that was repeated after a failure only the
last time does. What is left is saving, noticing a failure, starting, and repeating.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dtcourse.launch import send_message


@dataclass(frozen=True)
class Step:
    """That a rank has taken a step, from when until when: seconds on the machine's monotonic clock."""

    number: int
    began: float
    ended: float


@dataclass(frozen=True)
class Note:
    """What a rank has to say of itself."""

    text: str


def tell_step(number: int, began: float) -> None:
    """In a rank, one is enough: a step that began then (time.monotonic()) is over."""
    send_message(Step(number, began, time.monotonic()))


def tell(text: str) -> None:
    """In a rank: a line for the log."""
    send_message(Note(text))


@dataclass(frozen=True)
class Entry:
    """One line: seconds since the run began, the last step that was told of, who did something, and what."""

    seconds: float
    step: int
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.seconds:7.2f}  {self.step:4}  {self.who:8}  {self.what}"


class RunLog:
    """All lines of a run, and all its steps, from any thread.

    now: the clock of its lines; its beginning is 0
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.entries: list[Entry] = []
        self.steps: list[Step] = []
        self._now, self._began = now, now()
        self._lock = threading.Lock()

    @property
    def step(self) -> int:
        """The last step that was told of; 0 before the first."""
        return self.steps[-1].number if self.steps else 0

    def seconds(self) -> float:
        """Since it began."""
        return self._now() - self._began

    def add(self, who: str, what: str) -> None:
        """A line."""
        with self._lock:
            self.entries.append(Entry(self.seconds(), self.step, who, what))

    def __str__(self) -> str:
        return "\n".join(["seconds  step  who       what", *map(str, self.entries)])


@dataclass(frozen=True)
class Goodput:
    """What became of a run's time.

    seconds:  of the whole run
    useful:   of them, in steps that count
    repeated: of them, in steps that were lost to a failure, or taken again
    steps:    that count
    again:    steps that were taken in vain
    """

    seconds: float
    useful: float
    repeated: float
    steps: int
    again: int

    @property
    def share(self) -> float:
        """Of the time that was useful: from 0 to 1."""
        return self.useful / self.seconds


def goodput(steps: Sequence[Step], seconds: float) -> Goodput:
    """Of all steps of a run in the order in which they were taken, and its seconds. ValueError for no time."""
    if seconds <= 0:
        raise ValueError(f"a run takes time; got {seconds!r} s")
    last = {step.number: step for step in steps}
    useful = sum(step.ended - step.began for step in last.values())
    taken = sum(step.ended - step.began for step in steps)
    return Goodput(seconds, useful, taken - useful, len(last), len(steps) - len(last))
