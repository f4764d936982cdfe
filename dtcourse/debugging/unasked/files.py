"""Files that are written by several ranks, or at a wrong moment.

Where several write one file, each spoils the others' work, and what is left is of the last one, or of none. What is
written within an optimizer's step (by a signal's handler: nothing else gets in between) has some parameters of the new
step, and some of the old.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from dtcourse.callers import callers
from dtcourse.debugging.sentences import line_in_words, ranks_in_words

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Written(NamedTuple):
    """A file that this rank has opened for writing, the line that did, and the optimizer whose step was under way."""

    path: str
    line: str
    within: str


class Writes:
    """Notes the files that this rank opens for writing, through Python and through torch.save."""

    name = "files"

    def __init__(self) -> None:
        self._written: list[Written] = []
        self._ended = False
        self._save: Any = None

    def begin(self) -> None:
        sys.addaudithook(self._audit)  # for good: a hook cannot be taken away
        save, note = torch.save, self._note
        self._save = save

        def watched(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, (str, os.PathLike)):
                note(f)  # a zip file is opened in C++, which no hook hears of
            return save(obj, f, *args, **kwargs)

        torch.save = watched

    def end(self) -> list[Written]:
        self._ended = True
        torch.save = self._save
        return list(dict.fromkeys(self._written))

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if self._ended:
            return
        if event == "open":
            path, _mode, flags = args
            writes = isinstance(flags, int) and flags & _WRITES and not flags & os.O_APPEND
            if writes and isinstance(path, (str, bytes)):  # what is appended, as a log is, all may
                self._note(os.fsdecode(path))
        elif event == "os.rename":
            self._note(os.fsdecode(args[1]))

    def _note(self, path: Any) -> None:
        lines = callers()
        # Bytecode is the same whoever writes it, and Python puts it in its place at once.
        bytecode = Path(os.fsdecode(path)).parent.name == "__pycache__"
        if lines and not bytecode and not str(path).startswith(("/dev/", "/proc/", "/sys/")):
            within = _stepping(sys._getframe())
            self._written.append(Written(os.path.abspath(path), line_in_words(lines), within))


def _stepping(frame: FrameType | None) -> str:
    """The optimizer in whose step() a frame is, such as "SGD"."""
    while frame is not None:
        owner = frame.f_locals.get("self") if frame.f_code.co_name == "step" else None
        if isinstance(owner, Optimizer):
            return type(owner).__name__
        frame = frame.f_back
    return ""


def written_wrongly(seen: list[Any], results: list[Any]) -> str | None:
    """The first file that is written within a step, or by more ranks than one."""
    for rank, written in enumerate(seen):
        for one in written:
            if one.within:
                return (
                    f"On rank {rank}, {Path(one.path).name} is written in the middle of {one.within}.step(), at "
                    f"{one.line}: some parameters are updated, and some are not yet."
                )
    by_path: dict[str, dict[int, str]] = {}
    for rank, written in enumerate(seen):
        for one in written:
            by_path.setdefault(one.path, {}).setdefault(rank, one.line)
    for path, lines in by_path.items():
        if len(lines) > 1:
            who = ranks_in_words(lines)
            return (
                f"{who.capitalize()} all write {Path(path).name}, at {next(iter(lines.values()))}."
            )
    return None
