"""Asynchronous collectives: one worker thread a group, which runs them in the order in which they were called.

`dist.all_reduce(x, async_op=True)` returns a Work at once and the worker does the rest, while the caller computes:
the worker spends its time inside gloo or asleep, and both let go of Python's lock. A call that would be waited for
at once anyway (async_op=False) runs in the caller's own thread where nothing is queued before it, which saves two
changes of thread.

A Work that failed raises from `wait()`, and from the Future that DDP's C++ waits on.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import events, torch_private
from dtcourse.collectives.flight.entry import Entry
from dtcourse.collectives.flight.recorder import waited_for
from dtcourse.collectives.wire import observers
from dtcourse.collectives.wire.emulated_future import EmulatedFuture
from dtcourse.emulation import clock
from dtcourse.emulation.clock import Lane


class CollectiveWork(dist.Work):
    """The handle of one collective. `tensors` are what it leaves its result in; `entry` is what is recorded of it."""

    def __init__(self, name: str, tensors: list[torch.Tensor], entry: Entry | None = None) -> None:
        super().__init__()
        self.name, self.entry = name, entry
        self._tensors = tensors
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._ended = 0.0  # on an emulated clock
        self._waited_since: float | None = None  # where the caller's own thread ran it
        self._future: torch.futures.Future | None = None
        self._trigger: Callable[[BaseException | None], None] | None = None

    def is_for_inference(self) -> bool:
        """Whether it writes tensors that were made in torch.inference_mode, and may be written only there."""
        return any(map(torch.is_inference, self._tensors))

    def finish(self, error: BaseException | None = None, ended: float = 0.0) -> None:
        """The collective is over. ended: when, on an emulated clock."""
        if self.entry is not None:
            self.entry.finish(error)
        with self._lock:
            self._error, self._ended = error, ended
            self._done.set()
            trigger = self._trigger
        if trigger is not None:
            trigger(error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Returns when the result is there. Raises what the collective raised, on this rank or on another."""
        for observer in observers.present:
            observer.waits(self.name)
        blocked = not self._done.is_set()
        if not blocked and clock.installed() is None:
            if self._error is not None:
                raise self._error
            return True
        since = events.now()
        if self._waited_since is not None:
            since, self._waited_since = self._waited_since, None
        if blocked:
            seconds = timeout.total_seconds() if timeout else None
            with waited_for(self.entry):
                done = self._done.wait(seconds or None)
            if not done:
                raise RuntimeError(f"{self.name} was not done after {seconds:g} s")
        clock.wait_until(self._ended, since)
        ended = events.now()
        # On an emulated clock only that clock says who waits, not what this machine has done by now.
        if ended > since and (blocked or clock.installed() is not None):
            events.add(f"wait for {self.name}", "wait", since, ended)
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._future is None:
                if clock.installed() is None:
                    self._future, self._trigger = torch_private.future_of(self._tensors)
                else:
                    self._future, self._trigger = self._emulated_future()
                trigger = self._trigger if self._done.is_set() else None
            else:
                trigger = None
        if trigger is not None:
            trigger(self._error)
        return self._future

    def _emulated_future(self) -> tuple[EmulatedFuture, Callable[[BaseException | None], None]]:
        future = EmulatedFuture()
        if torch_private.in_backward():
            # C++ (DDP) will wait for the Future when backward ends, and tells nobody: the clock has to move there.
            torch_private.after_backward(future.wait_for_all)
        return future, lambda error: future.complete(self._tensors, error, self._ended)

    def is_completed(self) -> bool:
        """Whether it is over, on an emulated clock by that clock: a wait() that follows takes no time there."""
        return self._done.is_set() and events.now() >= self._ended

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._tensors

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()


class Worker:
    """Runs functions one after the other, in the order of `submit`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # held while a function runs, in whichever thread
        self._pending = 0
        self._count = 0
        self._thread: threading.Thread | None = None
        self._lane = Lane(name)

    def submit(
        self,
        work: CollectiveWork,
        function: Callable[..., Any],
        now: bool = False,
        numbered: bool = False,
    ) -> CollectiveWork:
        """Runs `function` and finishes `work` with its outcome.

        now:      the caller is about to wait for it
        numbered: call function(number): 1 for the first that was submitted here, and so on, on every rank alike
        """
        # The mode of the tensors that are written. Gradients are never recorded here.
        inference = torch.is_inference_mode_enabled() or work.is_for_inference()
        called = events.now()

        def run(number: int) -> None:
            nonlocal function
            error = None
            try:
                with (
                    torch.inference_mode() if inference else torch.no_grad(),
                    clock.on(self._lane, called),
                ):
                    function(number) if numbered else function()
            except BaseException as caught:
                error = caught
            del function  # what it was given may be freed before whoever waits goes on
            with self._lock:
                self._pending -= 1
            ended = self._lane.time
            self._turn.release()
            # Out of turn: what waits for it may call the next collective from here.
            work.finish(error, ended)

        with self._lock:
            mine = now and self._pending == 0
            self._pending += 1
            self._count += 1
            number = self._count
            if mine:
                self._turn.acquire()
            else:
                if self._thread is None or self._thread is threading.current_thread():
                    # No thread yet; or the thread's last work called back, and the callback (PowerSGD's, in DDP)
                    # calls a collective and will wait for it: another thread goes on with the queue.
                    self._thread = threading.Thread(
                        target=self._loop, daemon=True, name=f"dtcourse-{self._name}"
                    )
                    self._thread.start()
                self._queue.put(lambda: run(number))
        if mine:
            work._waited_since = called
            run(number)
        return work

    def _loop(self) -> None:
        while self._thread is threading.current_thread():
            run = self._queue.get()
            if run is None:
                return
            self._turn.acquire()
            run()
            del run  # or the last collective's tensors would live until the next one

    def stop(self, seconds: float = 5.0) -> None:
        """Ends the thread after what is queued, and waits for it a moment."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._queue.put(None)
            self._thread.join(seconds)
            self._thread = None
