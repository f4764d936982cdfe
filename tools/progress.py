"""How far a stage has got, in place of pytest's dots: a bar with the minutes left on a terminal, elsewhere a line a
minute. The time left is what the tests that are over took, for as many as are left.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from tqdm import tqdm

END = "DTCOURSE_TEST_TURNS_END"  # tests/rotation.py
EVERY = 60.0  # seconds between two lines
BAR = "{desc}: {percentage:3.0f} %|{bar}| {n_fmt} of {total_fmt} tests, {elapsed}, about {remaining} left"


class Progress:
    """The plugin: in the process that reports. `name`: the stage's."""

    def __init__(self, name: str) -> None:
        self.name = name
        # Its own way out: pytest takes the usual one for what the tests print.
        try:
            self.out = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
        except OSError:  # there is none
            self.out = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        self.bar: tqdm | None = None  # on a terminal, once it is known how many tests there are
        self.total = self.done = 0
        self.began = time.monotonic()
        self.over = threading.Event()
        # A thread, since a test that hangs is when somebody looks.
        self.teller = threading.Thread(target=self._tell, daemon=True)
        if not self.out.isatty():
            self.teller.start()

    def begins(self, tests: int) -> None:
        """So many tests there are."""
        self.total = tests
        if not self.teller.is_alive():
            self.bar = tqdm(
                total=tests,
                desc=self.name,
                bar_format=BAR,
                file=self.out,
                smoothing=0,
                dynamic_ncols=True,
                leave=False,
            )

    def goes_on(self) -> None:
        """A test is over."""
        self.done += 1
        if self.bar is not None:
            self.bar.update()

    def ends(self) -> None:
        """The last one is."""
        self.over.set()
        if self.bar is not None:
            self.bar.close()
        if self.teller.is_alive():
            self.teller.join()
        with suppress(OSError):  # nobody reads it any more
            self.out.close()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """For what is printed meanwhile: the bar makes room for it."""
        if self.bar is None:
            yield
            return
        self.bar.clear()
        try:
            yield
        finally:
            self.bar.refresh()

    def words(self) -> str:
        """One line."""
        minutes = (time.monotonic() - self.began) / 60
        line = f"{self.name}: {self.done:,} of {self.total:,} tests in {minutes:.0f} minutes"
        if not self.done:
            return line
        left = minutes * (self.total - self.done) / self.done
        if end := os.environ.get(END):  # what has not begun by then waits
            left = min(left, max(0.0, (float(end) - time.time()) / 60))
        return f"{line}, about {left:.0f} left"

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Iterator[None]:
        """No dots: the category alone, for pytest's last line."""
        category, *_ = yield
        return category, "", ""

    def _tell(self) -> None:
        while not self.over.wait(EVERY):
            if self.total:
                try:
                    print(self.words(), file=self.out, flush=True)
                except OSError:
                    return
