"""The Future of a collective on an emulated clock: what waits for it, or runs when it is there, does so at its time.

A Future's callback (`then`: a communication hook of DDP decompresses there) runs in the worker's thread if the
collective is still under way, and at once in the caller's if it is done. Which of the two depends on the real machine,
so here it makes no difference: callbacks run on a lane of their own, which begins when the collective has ended, and
what they compute is not counted, as nothing is that the group's worker does.

A callback that calls a collective itself (PowerSGD's) takes its place among the group's collectives when the machine
comes to it, so there the times are not the same twice; nor is the order of such collectives in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dtcourse import events
from dtcourse.emulation import clock
from dtcourse.emulation.clock import Lane


class EmulatedFuture(torch.futures.Future):
    """A Future that knows when it is complete: at the time of its lane, once it is."""

    def __init__(self, lane: Lane | None = None) -> None:
        super().__init__()
        self._lane = lane or Lane("callbacks")
        self._next: EmulatedFuture | None = None

    def complete(self, value: Any, error: BaseException | None, ended: float) -> None:
        """The collective has ended, at that time on the emulated clock."""
        self._lane.time = max(self._lane.time, ended)
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)

    def then(self, callback: Callable[[Any], Any]) -> EmulatedFuture:
        """A Future of what `callback` makes of this one."""
        after = self._next = EmulatedFuture(self._lane)

        def run(done: torch.futures.Future) -> None:
            with clock.on(self._lane, 0.0):
                try:
                    result = callback(done)
                except Exception as error:
                    after.set_exception(error)
                else:
                    after.set_result(result)

        super().then(run)
        return after

    def wait(self) -> Any:
        """The result; the waiter's time is then at least the Future's."""
        since = events.now()
        result = super().wait()
        clock.wait_until(self._lane.time, since)
        ended = events.now()
        if ended > since:
            events.add("wait for a future", "wait", since, ended)
        return result

    def wait_for_all(self) -> None:
        """Waits for this one and for what its callbacks, and theirs, make of it."""
        future: EmulatedFuture | None = self
        while future is not None:
            future.wait()
            future = future._next
