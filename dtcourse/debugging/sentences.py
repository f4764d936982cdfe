"""Ranks and lines in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from dtcourse.callers import Line
from dtcourse.collectives.flight.entry import readable as readable_lines
from dtcourse.launch.failures import readable


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Such as "rank 2", or "ranks 0, 1 and 3"."""
    numbers = sorted(ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def place(lines: list[list[Any]]) -> str:
    """The innermost of the reader's lines: "train.py:12 (dist.all_reduce(x))"."""
    if not lines:
        return "a line that is not recorded"
    file, line, _, text = lines[0]
    cell = readable(f'File "{file}"')
    name = cell if cell.startswith("Cell") else Path(file).name
    return f"{name}:{line}" + (f" ({text})" if text else "")


def line_in_words(lines: Sequence[Line]) -> str:
    """The same of lines as `callers` gives them."""
    return _of_line(tuple(lines[:1]))


@lru_cache(maxsize=4096)
def _of_line(lines: tuple[Line, ...]) -> str:
    return place(readable_lines(lines))
