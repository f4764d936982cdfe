"""A training that is started again after each failure, from its newest complete checkpoint, until it is done.

    def start(size, hear):
        return launch(train, size, "runs/7", wait=False, on_message=hear)

    recovery = Recovery(start, "runs/7/checkpoints", 4)
    run = recovery.run()                         # what launch would have returned
    print(recovery.log)

Where one rank fails, all are stopped and all start anew: simple, and right for any technique. `train` looks for the
checkpoint itself (Checkpoints.latest, TrainingState.load); here it is looked for to say in the log what was lost, and
to see whether the run gets anywhere:

    a failure       the ranks start again, after a pause that doubles with each failure in a row
    a preemption    they start again at once: they asked for it, and nothing is lost
    no new          several failures in a row without a newer checkpoint: it fails at the same place each time, and
    checkpoint      another start would not help. The last failure is raised
    silence         ranks that are stopped, or say nothing for too long, are killed, as a failure of theirs
                    (silence.py, heard_beats.py)

How many ranks start is asked before each start: as many as before, or as many as there are places. Then the training
has to be one that goes on on another number of them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from dtcourse.fault_tolerance import folders
from dtcourse.fault_tolerance.preemption import all_left
from dtcourse.fault_tolerance.run_log import Goodput, Note, RunLog, Step, goodput
from dtcourse.fault_tolerance.silence import Deadline, Watch
from dtcourse.launch import Cancelled, Handle, RankFailure, Run
from dtcourse.plural import plural

T = TypeVar("T")
OnMessage = Callable[[int, Any], None]
LOOK = 0.1  # seconds between two looks at ranks that run


class Clock(Protocol):
    """What pauses pass on, and what the log's times are of: the time module, or one that a test counts."""

    def monotonic(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float, /) -> None:
        """Lets them pass."""


@dataclass(frozen=True)
class Limits:
    """When to give up, and how long to wait.

    failures:  that a run survives in all, preemptions apart
    fruitless: failures in a row without a newer checkpoint: the last of so many is raised
    pause:     seconds before the start after a first failure; twice as long after each further one in a row
    longest:   seconds that no pause exceeds

    Raises ValueError for what cannot be.
    """

    failures: int = 100
    fruitless: int = 3
    pause: float = 1.0
    longest: float = 60.0

    def __post_init__(self) -> None:
        if self.failures < 0 or self.fruitless < 1:
            raise ValueError(
                f"failures is 0 or more and fruitless 1 or more; got {self.failures!r} and {self.fruitless!r}"
            )
        if not 0 <= self.pause <= self.longest:
            raise ValueError(
                f"pause and longest are seconds, the second not below the first; got {self.pause!r}, {self.longest!r}"
            )

    def seconds(self, in_a_row: int) -> float:
        """The pause after so many failures in a row without a newer checkpoint; 0: the last one had one."""
        return min(self.pause * 2.0 ** max(0, in_a_row - 1), self.longest)


class Recovery(Generic[T]):
    """Keeps one training going. `run` starts it; from other threads `pids` and `log` may be read meanwhile.

    start:      begins a launch of so many ranks, and returns its Handle; launch's on_message is to be the one given
    folder:     where the ranks' Checkpoints are
    world_size: how many ranks start, or a function of the number of the start, from 1 on
    watch:      what finds ranks that neither work nor die. Default: Deadline, which sees stopped ranks, and asks
                nothing of the training. HeardBeats finds those that hang, too; it is no default, as the training has
                to beat for it: one without a Heartbeat would be said never to have begun, and both need one folder
    on_message: gets what the ranks send besides steps and notes
    """

    def __init__(
        self,
        start: Callable[[int, OnMessage], Handle[T]],
        folder: str | Path,
        world_size: int | Callable[[int], int],
        limits: Limits | None = None,
        watch: Watch | None = None,
        on_message: OnMessage | None = None,
        clock: Clock = time,
    ) -> None:
        self.start, self.folder, self.on_message = start, Path(folder), on_message
        self.size_of = world_size if callable(world_size) else lambda _: world_size
        self.limits, self.watch, self.clock = limits or Limits(), watch or Deadline(), clock
        self.log = RunLog(clock.monotonic)
        self.starts = self.failures = self.in_a_row = 0
        self._handle: Handle[T] | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the ranks that run, by rank; none between two starts."""
        return () if self._handle is None else self._handle.pids

    @property
    def goodput(self) -> Goodput:
        """Of all that has been so far."""
        return goodput(self.log.steps, self.log.seconds())

    def run(self) -> Run[T]:
        """Starts the ranks until they return; returns what they did. Raises the last failure at a limit."""
        while True:
            before = folders.newest(self.folder)
            self.starts += 1
            size = self.size_of(self.starts)
            self._say(f"starts {plural(size, 'rank')}, {_in_words(before)}")
            self.watch.begin(size)
            self._handle = self.start(size, self._hear)
            try:
                run = self._result(self._handle)
            except (RankFailure, Cancelled) as failure:
                self._survive(failure, before)
            else:
                self._say(f"{plural(size, 'rank')} returned")
                return run
            finally:
                if not self._handle.done():  # Ctrl-C, or what is wrong here
                    self._handle.cancel()

    def _result(self, handle: Handle[T]) -> Run[T]:
        told = False
        while not handle.done():
            with suppress(TimeoutError):
                return handle.result(LOOK)
            silent = None if told else self.watch.look(handle.pids)
            if silent is None:
                continue
            told = True
            self._say(silent.why)
            for rank in silent.ranks:
                with suppress(ProcessLookupError, IndexError):  # it went just now, by itself
                    os.kill(handle.pids[rank], signal.SIGKILL)
            if not silent.ranks:
                handle.cancel()
        return handle.result()

    def _survive(self, failure: RankFailure | Cancelled, before: int | None) -> None:
        """Waits for as long as another start is to wait; raises where there is to be none."""
        if isinstance(failure, RankFailure) and all_left(failure):
            self.in_a_row = 0
            self._say("the ranks have left as they were asked to")
            return
        self._say(str(failure).splitlines()[0])
        now = folders.newest(self.folder)
        self.failures += 1
        newer = now is not None and (before is None or now > before)
        self.in_a_row = 0 if newer else self.in_a_row + 1
        if self.failures > self.limits.failures or self.in_a_row >= self.limits.fruitless:
            row = f"{self.in_a_row} in a row without a newer checkpoint"
            self._say(f"gives up after {plural(self.failures, 'failure')}, {row}")
            failure.add_note(f"It was failure {self.failures} of this run, {row}.")
            raise failure
        if pause := self.limits.seconds(self.in_a_row):
            self._say(f"waits for {pause:g} s")
            self.clock.sleep(pause)

    def _hear(self, rank: int, message: Any) -> None:
        self.watch.hear(rank, message)
        if isinstance(message, Step):
            self.log.steps.append(message)
        elif isinstance(message, Note):
            self.log.add(f"rank {rank}", message.text)
        elif self.on_message is not None:
            self.on_message(rank, message)

    def _say(self, what: str) -> None:
        self.log.add("recovery", what)


def _in_words(step: int | None) -> str:
    return "without a checkpoint" if step is None else f"from the checkpoint after step {step}"
