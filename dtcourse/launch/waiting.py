"""One line that says what is going on where it takes longer than a second, and that is gone when it is done.

In a terminal it is written to standard error and wiped again. In a notebook it is an output that is taken back, and
nothing of it is saved. Taking back empties a cell's whole output, so it is shown only in a cell that has shown nothing
yet; and only where somebody reads: nbclient, nbval and papermill say with each cell that nobody could answer a
question (allow_stdin of Jupyter's execute_request), JupyterLab says that somebody could.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dtcourse.launch import reporting

PATIENCE = 1.0  # seconds that need no explanation

_sent_before_cell: int | None = None  # messages of the kernel before this cell; None where unknown


@contextmanager
def saying(what: str) -> Iterator[None]:
    """Shows `what` while the block runs, from its second second on; nothing where there is nobody to read it."""
    place = _place()
    if place is None:
        yield
        return
    lock, over, shown = threading.Lock(), False, False

    def show() -> None:
        nonlocal shown
        with lock:
            if not over:
                shown = place.show(what)

    timer = threading.Timer(PATIENCE, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            over = True
            if shown:
                place.wipe()


def tell(what: str) -> None:
    """Says it to those whom `saying` cannot reach: who reads a script's standard error from a file, or later.

    Not in a notebook, where it would be saved.
    """
    if _place() is None and not reporting.in_notebook():
        with suppress(AttributeError, OSError, ValueError):
            print(what, file=sys.stderr, flush=True)


def _place() -> _Terminal | _Cell | None:
    """Where somebody would see a line, if anywhere."""
    if reporting.in_notebook():
        return _Cell() if _Cell.has_reader() and _sent_before_cell is not None else None
    with suppress(AttributeError, ValueError):  # no standard error, or a closed one
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            return _Terminal()
    return None


class _Terminal:
    """The last line of a terminal."""

    def show(self, what: str) -> bool:
        columns = shutil.get_terminal_size().columns
        self._write("\r\x1b[K" + f"{what} ..."[: columns - 1])
        return True

    def wipe(self) -> None:
        self._write("\r\x1b[K")

    @staticmethod
    def _write(text: str) -> None:
        with suppress(OSError, ValueError):  # what was to be read is no reason to fail
            sys.stderr.write(text)
            sys.stderr.flush()


class _Cell:
    """The output of the running cell, as long as it is empty but for our line."""

    def __init__(self) -> None:
        shell = _shell()
        self.kernel, self.session = shell.kernel, shell.kernel.session
        self.cell = shell.get_parent()  # known to this thread; the timer's would have to guess
        self.sent = 0

    @staticmethod
    def has_reader() -> bool:
        """Whether the cell came from a front end with a person before it."""
        return bool(_shell().get_parent().get("content", {}).get("allow_stdin"))

    def show(self, what: str) -> bool:
        if self._count() != _sent_before_cell:
            return False  # the cell has shown something, which could not stay when our line goes
        self._send("display_data", self._line(f"{what} ..."))
        self.sent = self._count()
        return True

    def wipe(self) -> None:
        if self._count() == self.sent:
            self._send("clear_output", {"wait": False})
        else:  # another thread has shown something meanwhile, which is to stay
            self._send("update_display_data", self._line(""))

    @staticmethod
    def _line(text: str) -> dict[str, Any]:
        transient = {"display_id": "dtcourse-waiting"}
        return {"data": {"text/plain": text}, "metadata": {}, "transient": transient}

    def _count(self) -> int:
        """Messages that the kernel has sent, what was printed included."""
        sys.stdout.flush()
        sys.stderr.flush()
        return self.session.message_count

    def _send(self, kind: str, content: dict[str, Any]) -> None:
        self.session.send(
            self.kernel.iopub_socket, kind, content, parent=self.cell, ident=kind.encode()
        )


def _shell() -> Any:
    return sys.modules["IPython"].get_ipython()


def watch_cells(after: Callable[[], Any]) -> None:
    """From the next cell on, knows whether a cell has shown anything yet. For a notebook, once.

    after: called when a cell has ended
    """

    def begin(_info: Any) -> None:
        global _sent_before_cell
        _sent_before_cell = _shell().kernel.session.message_count

    def end(_result: Any) -> None:
        after()

    _shell().events.register("pre_run_cell", begin)
    _shell().events.register("post_run_cell", end)
