"""Calls and ranks in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dtcourse.callers import Line
from dtcourse.collectives.flight.entry import readable as readable_lines
from dtcourse.debugging.records import Call
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
    return place(readable_lines(tuple(lines[:1])))


def in_words(call: Call) -> str:
    """Such as "all_reduce(SUM) of (10,) float32", "isend to rank 1 of (4,) float32, tag 3"."""
    words = call.operation
    details = [str(v) if k == "op" else f"{k} {v}" for k, v in call.detail.items() if k != "call"]
    if details:
        words += f"({', '.join(details)})"
    if call.is_message:
        other = "any rank" if call.peer is None else f"rank {call.peer}"
        words += f" {'to' if call.kind == 'send' else 'from'} {other}"
    if call.sizes:
        shown = ", ".join(str(tuple(size)) for size in call.sizes[:3])
        words += f" of {shown}{', ...' if len(call.sizes) > 3 else ''}"
    words += f" {call.dtype}" if call.dtype else ""
    return words + (f", tag {call.tag}" if call.is_message and call.tag else "")


def numbered(call: Call) -> str:
    """A collective with its place in the group: "all_reduce(SUM) of (10,) float32, call 4 of the default group"."""
    return f"{in_words(call)}, call {call.seq} of {call.group}"
