"""Ctrl-C during a launch."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupts:
    """Ctrl-C during a launch: the first press raises KeyboardInterrupt; the impatient ones after it, and all during
    the clean-up, wait until no rank is left.
    """

    def __init__(self) -> None:
        self.waiting = self.cleaning_up = False
        self._raised = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # the only one that gets signals
            self._before = signal.getsignal(signal.SIGINT)
            if callable(self._before):
                signal.signal(signal.SIGINT, self._pressed)
        return self

    def _pressed(self, number: int, frame: Any) -> None:
        if self._raised:
            return
        if self.cleaning_up:
            self.waiting = True
            return
        try:
            self._before(number, frame)
        except BaseException:
            self._raised = True
            raise

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """One that is pressed in this block raises at its end: for what is short, and must not be left half done."""
        self.cleaning_up = True
        yield
        self.cleaning_up = False
        if self.waiting:
            self.waiting = False
            self._pressed(signal.SIGINT, None)

    def __exit__(self, *_: object) -> None:
        if callable(self._before):
            signal.signal(signal.SIGINT, self._before)
            if self.waiting and not self._raised:
                self._before(signal.SIGINT, None)
