"""Calls in words."""

from __future__ import annotations

from dtcourse.debugging.hang.records import Call


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
