"""A rank's side: a thread that says, every second, that the process is there and how far its training is.

    with Heartbeat(where) as watch:
        for step in range(first, last):
            ...
            watch.step(step)                # at the end of each step
            if step % 100 == 0:
                with watch.pause("saving"):
                    checkpoints.save(...)

The thread writes a few hundred bytes, over nothing that the training uses. A place that cannot be reached (a full disk,
a store that has gone) disturbs no step: what could not be written is counted, and said with the next beat.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType

from dtcourse.fault_tolerance.watching.beat import Beat
from dtcourse.fault_tolerance.watching.places import Place, Where, place_of
from dtcourse.fault_tolerance.watching.process import this_process
from dtcourse.fault_tolerance.watching.progress import Progress
from dtcourse.launch import deadlock, failures

STACKS = 8000  # characters of stacks that a late rank shows
Frames = list[tuple[str, int, str]]  # file, line, function; innermost first


class Heartbeat:
    """Beats from the beginning of the block to its end; enter it in the thread of the training loop.

    where:    a folder, a TCPStore as "tcp://address:port", or None for the one that the environment names (places.py)
    rank:     default: this rank's
    interval: seconds between two beats. After two without one, and 2 s, a rank is dead or stopped
    floor:    seconds without a step that are never a hang, however short the steps are
    attempt:  which start of the job this is, counted up; default: torchrun's, else 0. A watcher looks at the newest

    Its rank and attempt may be set anew while it beats, both before the first step of a group that is formed anew.
    Raises ValueError for what cannot be.
    """

    def __init__(
        self,
        where: Where | Place = None,
        rank: int | None = None,
        interval: float = 1.0,
        floor: float = 5.0,
        attempt: int | None = None,
    ) -> None:
        for name, value in (("interval", interval), ("floor", floor)):
            if not value > 0:
                raise ValueError(f"{name} is in seconds, more than 0; got {value!r}")
        self.place = place_of(where) if where is None or isinstance(where, str | Path) else where
        self.rank = own_rank() if rank is None else rank
        self.interval, self.floor = interval, floor
        self.attempt = own_attempt() if attempt is None else attempt
        self.progress = Progress(interval)
        self._over = threading.Event()
        self._number = self._unsaid = 0
        self._process = this_process()

    def step(self, number: int | None = None) -> None:
        """Says that a step is done. number: its own; default: one more than the last."""
        self.progress.step(number)

    @contextmanager
    def pause(self, reason: str, at_most: float | None = None) -> Iterator[None]:
        """Announces something long and legal inside the block: its time counts neither as a hang nor as a step's.

        reason:  as a sentence goes on after "is": "saving"
        at_most: seconds after which it is a hang all the same
        """
        self.progress.pause(reason, at_most)
        try:
            yield
        finally:
            self.progress.go_on()

    def __enter__(self) -> Heartbeat:
        self._loop_thread = threading.get_ident()
        self.progress = Progress(self.interval)
        self._thread = threading.Thread(target=self._go, name="dtcourse-heartbeat", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._left = "returned" if kind is None else f"raised {kind.__name__}"
        self._over.set()
        self._thread.join()

    def _go(self) -> None:
        self._say()
        while not self._over.wait(self.interval):
            self._say()
        self._say(self._left)

    def _say(self, left: str = "") -> None:
        """One beat. The thread outlives whatever happens to it."""
        self._number += 1
        try:
            self.progress.tick()
            self.place.write(self.rank, self.beat(left).packed())
            self._unsaid = 0
        except (OSError, RuntimeError):
            self._unsaid += 1

    def beat(self, left: str = "") -> Beat:
        """What is said now."""
        reason, paused, limit = self.progress.paused()
        frames = frames_of(self._loop_thread)
        said = Beat(
            rank=self.rank,
            number=self._number,
            process=self._process,
            attempt=self.attempt,
            interval=self.interval,
            step=self.progress.step_number,
            idle=self.progress.idle(),
            since_step=self.progress.since_step(),
            longest=self.progress.longest,
            floor=self.floor,
            gap=self.progress.gap,
            pausing=reason,
            paused=paused,
            pause_limit=limit,
            doing=failures.where_in(frames),
            waits=deadlock.waits_in(frames),
            left=left,
            unsaid=self._unsaid,
        )
        return replace(said, stacks=all_stacks()) if said.is_late else said


def frames_of(thread: int) -> Frames:
    """Where a thread of this process is; of a rank of launch, without what launch has called it from."""
    return list(_frames(sys._current_frames().get(thread)))


def _frames(frame: FrameType | None) -> Iterator[tuple[str, int, str]]:
    while frame is not None:
        code = frame.f_code
        yield code.co_filename, frame.f_lineno, code.co_name
        frame = frame.f_back


def all_stacks() -> str:
    """The stacks of all threads, in the form in which launch has them (faulthandler's), so that it can read them."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = []
    for number, frame in sys._current_frames().items():
        lines.append(f"Thread {names.get(number, number)} (most recent call first):")
        lines += [f'  File "{file}", line {line} in {name}' for file, line, name in _frames(frame)]
    return "\n".join(lines)[:STACKS]


def own_rank() -> int:
    """This rank's number: of the group, else of the environment."""
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", 0))


def own_attempt() -> int:
    """How often torchrun has started the ranks again; 0 elsewhere."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
