"""launch(..., wait=False): the launch goes on in a thread, and this is what the caller has of it.

handle = launch(train, 4, wait=False)
...                                     # the notebook is free
run = handle.result()                   # what launch would have returned, or what it would have raised
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from dtcourse.launch import output
from dtcourse.launch.interrupts import Stop
from dtcourse.launch.run import Run

T = TypeVar("T")


class Cancelled(RuntimeError):
    """The launch was cancelled before its ranks had answered."""


class Handle(Generic[T]):
    """A launch that runs. Its ranks end with the notebook, whether anybody waits for them or not."""

    def __init__(self, name: str, begin: Callable[[Handle[T]], Run[T]]) -> None:
        self.stop = Stop()
        self.lines: dict[int, list[str]] = {}  # that ranks have printed so far; shown by `result`
        self._name, self._shown = name, False
        self._run: Run[T] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._go, args=(begin,), name="dtcourse-launch", daemon=True
        )
        self._thread.start()

    def _go(self, begin: Callable[[Handle[T]], Run[T]]) -> None:
        try:
            self._run = begin(self)
        except KeyboardInterrupt as interrupt:
            self._error = Cancelled(f"the launch of {self._name} was cancelled")
            for note in getattr(interrupt, "__notes__", ()):
                self._error.add_note(note)
        except BaseException as error:
            self._error = error
        finally:
            self.stop.close()

    def take_line(self, rank: int, line: str) -> None:
        """Keeps what a rank has printed."""
        self.lines.setdefault(rank, []).append(line)

    def done(self) -> bool:
        """Whether `result` returns or raises at once."""
        return not self._thread.is_alive()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids by rank: for who watches them, or sends them a signal. None before they are all started,
        when they are gone, and where they run on other machines.
        """
        return () if self.done() else self.stop.pids

    def result(self, timeout: float | None = None) -> Run[T]:
        """Waits for the launch, at most `timeout` seconds; returns or raises what launch does.

        The first call shows what the ranks have printed. TimeoutError where they still run.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the ranks of {self._name} still run after {timeout:g} s")
        if not self._shown:
            self._shown = True
            output.show(
                [self.lines.get(rank, []) for rank in range(max(self.lines, default=-1) + 1)]
            )
        if self._error is not None:
            raise self._error
        assert self._run is not None, "it has returned"
        return self._run

    def cancel(self) -> None:
        """Ends the ranks where they still run, and waits until they are gone: `result` raises Cancelled then."""
        self.stop.press()
        self._thread.join()

    def __repr__(self) -> str:
        if not self.done():
            return f"<launch of {self._name}, running>"
        return f"<launch of {self._name}, {'failed' if self._error is not None else 'done'}>"
