"""How far a rank is: its steps, how long they take, and since when there was none.

Time without a step counts only where the rank could have made one. Left out are

- what is announced: `pause("saving")`
- what nobody in this process had: it was stopped and went on, or the machine was so busy that not even the thread that
  beats got a turn. That thread looks every interval, and where it comes late, all but one interval is left out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

KEPT = 3  # longest steps


class Progress:
    """Told by the training loop, and asked by the thread that beats.

    interval: seconds between two ticks of that thread
    clock:    in seconds
    """

    def __init__(self, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval, self._clock = interval, clock
        # A signal's handler may call `step` while the loop is in it.
        self._lock = threading.RLock()
        self.step_number: int | None = None
        self.longest: tuple[float, ...] = ()
        self.gap = 0.0
        self.pauses: list[tuple[str, float, float | None]] = []  # reason, since when, limit
        self._ticked = clock()
        self._left_out = 0.0  # seconds since the beginning that do not count
        self._last_step = self._counted()  # in counted seconds
        self._stepped = clock()

    def step(self, number: int | None = None) -> None:
        """A step is done. number: its own; default: one more than the last, and 1 for the first."""
        with self._lock:
            self._notice_gap()
            now = self._counted()
            if number is None:
                number = (self.step_number or 0) + 1
            self.longest = tuple(
                sorted((*self.longest, now - self._last_step), reverse=True)[:KEPT]
            )
            self.step_number, self._last_step, self._stepped = number, now, self._clock()

    def tick(self) -> None:
        """The thread that beats is here."""
        with self._lock:
            self._notice_gap()
            self._ticked = self._clock()

    def idle(self) -> float:
        """Counted seconds since the last step, or since the beginning."""
        with self._lock:
            return self._counted() - self._last_step

    def since_step(self) -> float:
        """Seconds since the last step, or since the beginning, whatever they went by with."""
        return self._clock() - self._stepped

    def pause(self, reason: str, limit: float | None) -> None:
        """From here on nothing counts."""
        with self._lock:
            self._notice_gap()
            self.pauses.append((reason, self._clock(), limit))

    def go_on(self) -> None:
        """The pause that began last is over."""
        with self._lock:
            self._notice_gap()
            _, since, _ = self.pauses.pop()
            if not self.pauses:  # an inner one is a part of the outer one
                self._left_out += self._clock() - since

    def paused(self) -> tuple[str, float, float | None]:
        """What is announced, for how long by now, and how long it may last."""
        with self._lock:
            if not self.pauses:
                return "", 0.0, None
            reason, since, limit = self.pauses[-1]
            return reason, self._clock() - since, limit

    def _counted(self) -> float:
        now = self.pauses[0][1] if self.pauses else self._clock()
        return now - self._left_out

    def _notice_gap(self) -> None:
        """Whoever comes first after a gap leaves it out: the loop's step may come before the late tick."""
        now = self._clock()
        gap = now - self._ticked
        if gap <= 2 * self.interval:
            return
        self.gap = max(self.gap, gap)
        self._ticked = now
        if not self.pauses:
            self._left_out += gap - self.interval
