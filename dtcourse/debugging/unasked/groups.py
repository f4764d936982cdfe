"""Groups that a program has taken down and asks for afterwards."""

from __future__ import annotations

import sys
import traceback
from typing import Any, NamedTuple

import torch.distributed as dist

from dtcourse.callers import callers, is_library
from dtcourse.debugging.sentences import line_in_words, place, ranks_in_words

_SAYS = ("has not been initialized", "Invalid process group", "is not a valid process group")


class Missed(NamedTuple):
    """line: where the default group was taken down; later: where a group was asked for after that"""

    line: str
    later: str


class TakenDown:
    """Notes where this rank takes down all groups, and whether it ends in a call that lacks one."""

    name = "groups"

    def __init__(self) -> None:
        self._line = ""
        self._destroy: Any = None

    def begin(self) -> None:
        self._destroy = dist.destroy_process_group

        def watched(group: Any = None) -> None:
            if group is None or group is dist.group.WORLD:
                self._line = line_in_words(callers())
            self._destroy(group)

        dist.destroy_process_group = watched

    def end(self) -> Missed | None:
        dist.destroy_process_group = self._destroy
        error = sys.exc_info()[1]
        if not self._line or error is None or not any(words in str(error) for words in _SAYS):
            return None
        stack = traceback.extract_tb(error.__traceback__)
        own = [f for f in stack if not is_library(f.filename)]
        lines = [[f.filename, f.lineno, f.name, f.line or ""] for f in reversed(own)]
        return Missed(self._line, place(lines))


def asked_for_afterwards(seen: list[Any], results: list[Any]) -> str | None:
    """Which ranks took down all groups, where, and where they needed one then."""
    ranks = [rank for rank, missed in enumerate(seen) if missed is not None]
    if not ranks:
        return None
    line, later = seen[ranks[0]]
    return (
        f"{ranks_in_words(ranks).capitalize()} took down all groups, the default group too, at {line}, and called for "
        f"one afterwards at {later}."
    )
