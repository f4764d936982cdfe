"""Ctrl-C during a launch."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any


class Stop:
    """Lets another thread end a launch, as Ctrl-C does in the main one, and tells it which processes the ranks are.

    pids: by rank, on this machine, from when all have been started until all are gone; else none
    """

    def __init__(self) -> None:
        self.pids: tuple[int, ...] = ()
        self._event = threading.Event()
        self._heard: Connection | None = None
        self._said: Connection | None = None
        self._lock = threading.Lock()

    def press(self) -> None:
        """Ends the launch."""
        with self._lock:
            self._event.set()
            if self._said is not None:
                self._said.close()  # who waits for the other end is woken
                self._said = None

    def is_pressed(self) -> bool:
        """Whether somebody has."""
        return self._event.is_set()

    def pipe(self) -> Connection:
        """A connection that can be read from once it is pressed: for one who waits for connections."""
        with self._lock:
            if self._heard is None:
                self._heard, self._said = Pipe(duplex=False)
                if self._event.is_set():
                    self._said.close()
            return self._heard

    def close(self) -> None:
        """Nobody can press any more."""
        with self._lock:
            for end in (self._heard, self._said):
                if end is not None:
                    end.close()
            self._heard = self._said = None


class Interrupts:
    """Ctrl-C during a launch: the first press raises KeyboardInterrupt; the impatient ones after it, and all during
    the clean-up, wait until no rank is left.
    """

    def __init__(self, stop: Stop | None = None) -> None:
        self.stop = stop
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
