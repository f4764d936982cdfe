"""Whose code a line is: the reader's own, or a library's. Failures and records name the reader's."""

from __future__ import annotations

import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

_ROOTS = (
    str(Path(__file__).resolve().parent),
    sysconfig.get_paths()["stdlib"],
    sysconfig.get_paths()["purelib"],
    "<frozen",
)


class Line(NamedTuple):
    """A line of a program, and the function it is in."""

    file: str
    line: int
    function: str


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether a frame's file is not the reader's own."""
    return file.startswith(_ROOTS)


def lines_of(frame: FrameType | None, most: int = 3) -> tuple[Line, ...]:
    """The reader's own lines in a stack that ends with `frame`, innermost first."""
    found: list[Line] = []
    while frame is not None and len(found) < most:
        code = frame.f_code
        if not is_library(code.co_filename):
            found.append(Line(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(found)


def callers(most: int = 3) -> tuple[Line, ...]:
    """The reader's own lines that have led to this call, innermost first."""
    return lines_of(sys._getframe(1), most)
