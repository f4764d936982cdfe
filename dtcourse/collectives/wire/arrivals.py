"""Which of several messages is over first: `wait_any`, and what it needs of a message.

gloo offers a message's wait() and nothing else: its is_completed() stays False until somebody has waited, and a second
wait() never returns. So each message that wait_any is asked about gets a thread, which sits in wait() and rings a bell;
the thread spends its time inside gloo, and lets go of Python's lock there. Whoever else waits for the same message
waits for that thread.

Messages are taken in the order in which they were over, not in that of the list: a peer that sends all the time cannot
keep the others from their turn (MPI_Waitany promises less). On an emulated network, over
is when it would be over there.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from dtcourse import events
from dtcourse.collectives.flight.entry import Entry
from dtcourse.collectives.flight.recorder import waited_for
from dtcourse.emulation import clock

_bell = threading.Condition()  # rung when a watched message is over
_numbers = itertools.count(1)


class Pending(dist.Work):
    """A message under way. `come` waits for it, and is called once, by whichever thread is the first to need it.

    due:    when it is over on an emulated clock
    number: its place in the order in which this process's messages were over; 0 while it is under way
    waited: whether its `wait()` has returned;  rung: whether wait_any knows that it is over
    entry:  what is recorded of it
    """

    entry: Entry | None = None

    due, number, waited, rung = 0.0, 0, False, False
    _error: BaseException | None = None
    _watched = False

    def __init__(self, started: Any = None) -> None:
        super().__init__()
        self._started = started
        self._once = threading.Lock()

    def come(self, timeout: timedelta | None) -> None:
        """Waits for the message itself. Raises what went wrong with it."""
        raise NotImplementedError

    def settle(self, timeout: timedelta | None = None) -> None:
        """Returns when the message has come or left, or will never."""
        if self.number:
            return
        if not self._once.acquire(timeout=timeout.total_seconds() if timeout else -1):
            assert timeout is not None
            raise RuntimeError(f"the message was not over after {timeout.total_seconds():g} s")
        try:
            if not self.number:
                try:
                    self.come(timeout)
                except Exception as error:
                    self._error = error
                self.number = next(_numbers)
        finally:
            self._once.release()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Returns when the tensor may be changed (send) or holds the message (recv)."""
        if self.entry is None:
            self.settle(timeout)
        else:
            with waited_for(self.entry):
                self.settle(timeout)
        self.waited = True
        if self._error is not None:
            raise self._error
        return True

    def watch(self) -> None:
        """Has a thread ring the bell when the message is over."""
        self.rung = self.rung or bool(self.number)
        if self._watched or self.rung:
            return
        self._watched = True
        threading.Thread(target=self._ring, daemon=True, name="dtcourse-wait-any").start()

    def _ring(self) -> None:
        self.settle()
        while self._error is None and not self.is_completed_here():
            time.sleep(1e-4)  # NCCL's wait() returns when the message is queued
        with _bell:
            self.rung = True
            _bell.notify_all()

    def is_completed_here(self) -> bool:
        """Whether it is over on this machine, whatever an emulated clock says."""
        return bool(self.number)


class Posted(Pending):
    """A message that nobody counts, records or slows: torch's own Work, and its wait() may be called twice."""

    def come(self, timeout: timedelta | None) -> None:
        self._started.wait(timeout) if timeout else self._started.wait()

    def is_completed(self) -> bool:
        return bool(self.number) or self._started.is_completed()

    def is_completed_here(self) -> bool:
        return self._started.is_completed()

    def source_rank(self) -> int:
        return self._started.source_rank()

    _source_rank = source_rank  # torch has both names


def wait_any(works: Sequence[dist.Work | None]) -> int:
    """Waits until one of several messages is over, and returns its index: the first to be over comes first.

        for _ in works:                        # in the order in which they come
            index = p2p.wait_any(works)
            works[index].wait()                # returns at once, or raises what went wrong: a peer that is gone

    works: from isend and irecv, of one group or of several. None, and what has been waited for already, is passed over

    Raises ValueError where nothing is left to wait for, for a Work that is not from p2p, and on the virtual clock,
    which cannot know what arrives first, for more than one.
    """
    for index, work in enumerate(works):
        if work is not None and not isinstance(work, Pending):
            raise ValueError(
                f"works[{index}] is a {type(work).__name__}; wait_any takes what p2p.isend and p2p.irecv return"
            )
    left = {i: w for i, w in enumerate(works) if isinstance(w, Pending) and not w.waited}
    if not left:
        raise ValueError(f"none of {len(works)} works is left to wait for")
    emulated = clock.installed()
    if emulated is not None and not emulated.arrival_decides and len(left) > 1:
        raise ValueError(
            f"wait_any of {len(left)} messages takes what arrives first, and the virtual clock does not know what that "
            'is: launch(..., clock="wall")'
        )
    since = events.now()
    if len(left) == 1:
        index, first = next(iter(left.items()))
        first.settle()
    else:
        for work in left.values():
            work.watch()
        index, first = _first_over(left)
    clock.wait_until(first.due, since)
    return index


def _first_over(left: dict[int, Pending]) -> tuple[int, Pending]:
    """The message that is over first, once it is. A later one may be on a slower link, and an earlier one come yet."""
    emulated = clock.installed()
    with _bell:
        while True:
            over = [(work.due, work.number, i) for i, work in left.items() if work.rung]
            due, _, index = min(over, default=(0.0, 0, -1))
            rest = due - events.now() if over and emulated is not None else 0.0
            if over and rest <= 0:
                return index, left[index]
            _bell.wait(rest * emulated.slowdown if emulated is not None and over else None)
