"""What a rank tells the notebook: progress, and messages of any kind, on one channel; and how it failed.

Outside a launch (under torchrun, or in one process) send_message does nothing and progress draws its own bar, so a
function that uses them runs anywhere.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from dtcourse.launch import serialization

T = TypeVar("T")

# Sends (kind, content) to the launcher, in a rank.
_channel: Callable[[str, Any], None] | None = None


def connect(channel: Callable[[str, Any], None]) -> None:
    """From now on this process is a rank, and tells the launcher by channel(kind, content)."""
    global _channel
    _channel = channel


def send_message(message: Any) -> None:
    """Sends anything picklable to the notebook, where launch(..., on_message=f) calls f(rank, message).

    Messages of one rank arrive in order. Does nothing outside a launch.
    """
    if _channel is not None:
        _channel("message", message)


def progress(items: Iterable[T], label: str = "", total: int | None = None) -> Iterator[T]:
    """Yields `items` and draws one bar in the notebook for all ranks (rank 0's position)."""
    if total is None and hasattr(items, "__len__"):
        total = len(items)  # type: ignore[arg-type]
    if int(os.environ.get("RANK", 0)) != 0:
        yield from items
        return
    if _channel is None:
        from tqdm.auto import tqdm

        yield from tqdm(items, desc=label, total=total, leave=False)
        return
    last, done = 0.0, 0
    try:
        for item in items:
            now = time.monotonic()
            if now - last > 0.1:  # ten times a second is as often as an eye wants it
                _channel("progress", (label, done, total))
                last = now
            yield item
            done += 1
        total = done
    finally:  # also where the loop is left early
        _channel("progress", (label, done, total))


class Bars:
    """The notebook's side of `progress`: one bar a label."""

    def __init__(self) -> None:
        self._bars: dict[str, Any] = {}

    def update(self, label: str, done: int, total: int | None) -> None:
        """Moves the bar of that label, which appears with its first position."""
        if label not in self._bars:
            self._bars[label] = _NotebookBar(label) if in_notebook() else _TerminalBar(label)
        self._bars[label].update(done, total)

    def close(self) -> None:
        """Leaves a line of text, or nothing, where each bar was."""
        for bar in self._bars.values():
            bar.close()


class _NotebookBar:
    """An HTML bar that ends as a line without times, so that a saved notebook is the same on every machine."""

    def __init__(self, label: str) -> None:
        from IPython.display import display

        self.label, self.text = label, ""
        self.handle = display(self._bundle(0, None), raw=True, display_id=True)

    def _bundle(self, done: int, total: int | None) -> dict[str, str]:
        import html  # here, since a rank that imports this module has no use for its table of entities

        self.text = f"{self.label} {done}" + (f" of {total}" if total else "")
        most = f' max="{total}"' if total else ""
        bar = f'<progress value="{done}"{most}></progress> {html.escape(self.text)}'
        return {"text/plain": self.text, "text/html": bar}

    def update(self, done: int, total: int | None) -> None:
        self.handle.update(self._bundle(done, total), raw=True)

    def close(self) -> None:
        self.handle.update({"text/plain": self.text}, raw=True)


class _TerminalBar:
    def __init__(self, label: str) -> None:
        from tqdm import tqdm

        self.bar = tqdm(desc=label, leave=False, file=sys.stderr)

    def update(self, done: int, total: int | None) -> None:
        self.bar.total = total
        self.bar.update(done - self.bar.n)

    def close(self) -> None:
        self.bar.close()


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


def describe(error: BaseException, ours: str) -> dict[str, Any]:
    """A failure as plain data. The exception itself comes along where it can be pickled.

    ours: the file that called the function, whose frames come first and say nothing to the reader
    """
    when = time.monotonic()
    if isinstance(error, SystemExit):
        summary = f"called sys.exit({error.code!r}) before it returned"
    else:
        try:
            text = str(error)
        except Exception:
            text = ""
        summary = f"raised {type(error).__name__}" + (f": {text}" if text else "")
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == ours:
        frames = frames.tb_next
    details = "".join(traceback.format_exception(type(error), error, frames))
    carried: BaseException | None = error.with_traceback(None)
    try:
        # Many exceptions can be pickled but not built again: those whose __init__ takes other arguments than a text.
        stream, buffers = serialization.serialize(carried)
        pickle.loads(stream, buffers=buffers)
    except Exception:
        carried = None
    return {"summary": summary, "details": details, "when": when, "exception": carried}
