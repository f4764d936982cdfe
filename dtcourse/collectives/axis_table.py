"""Which axis of a mesh talks how much: what was counted, in a line for each axis and operation.

    print(run.traffic.by_axis(phase="step", steps=3))         # per step
    plots.table(run.traffic.by_axis())                        # in a notebook
    run.traffic.by_axis(formula={("tp", "all_reduce"): 16384})    # beside what sizes and degrees say

Lines are dicts, for pandas or to print: axis, operation, pairs (of a sender and a receiver), messages, bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

NO_AXIS = "no axis"
TEXT = ("axis", "operation", "phase")  # columns of words; all others are numbers


class Lines(list[dict[str, Any]]):
    """Lines of a table, a dict each. str() is aligned text."""

    def __str__(self) -> str:
        if not self:
            return "no traffic"
        cells = [list(self[0])] + [[_written(v) for v in line.values()] for line in self]
        widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
        text = {i for i, name in enumerate(self[0]) if name in TEXT}
        return "\n".join(
            "  ".join(
                c.ljust(w) if i in text else c.rjust(w)
                for i, (c, w) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in cells
        )


def by_axis(
    rows: Iterable[Any],
    steps: int,
    formula: Mapping[tuple[str, str], int] | None,
    algorithmic: bool,
) -> Lines:
    """A line for each axis and operation of these rows (counted.Row), which are messages sent; see Traffic.by_axis."""
    if steps < 1:
        raise ValueError(f"steps is how many were counted, at least 1; got {steps}")
    found: dict[tuple[str, str], list[Any]] = {key: [set(), 0, 0] for key in formula or {}}
    for row in rows:
        count = found.setdefault((row.axis, row.operation), [set(), 0, 0])
        count[0].add((row.rank, row.peer))
        count[1] += row.messages
        count[2] += row.bytes
    lines = Lines()
    for (axis, operation), (pairs, messages, nbytes) in sorted(found.items()):
        for number, what in ((messages, "messages"), (nbytes, "bytes")):
            if number % steps:
                raise ValueError(
                    f"{number:,} {what} of {operation} on {axis or NO_AXIS} are not those of {steps} equal steps: "
                    'count equal ones alone, as in `with traffic.phase("step"): ...` and by_axis(phase="step"). '
                    "(A first step sends more: pipelines say there what will come)"
                )
        name = "algorithmic bytes" if algorithmic else "bytes"
        line: dict[str, Any] = {"axis": axis or NO_AXIS, "operation": operation}
        if not algorithmic:  # else nobody has seen a message, so there is none to count
            line |= {"pairs": len(pairs), "messages": messages // steps}
        line[name] = nbytes // steps
        if formula is not None:
            said = formula.get((axis, operation), 0)
            line |= {"formula": said, "ratio": nbytes / steps / said if said else float("nan")}
        lines.append(line)
    return lines


def _written(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
