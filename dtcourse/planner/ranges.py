"""What a source does not say is a range, and what is predicted from it an interval.

    Hardware.of("A100 SXM", sustained=Range(0.7, 0.85, 0.95))
    predict(...).interval                                  # (fastest, slowest)

Fields of the planner's dataclasses may be one where their type is Any; the others are one number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

MOST = 6  # ranges of which nobody knows which end is the faster: all combinations of them are tried
# Larger numbers of FASTER make a step shorter, larger ones of SLOWER make it longer (or neither changes it). All move
# together. (The device's memory changes no step, but is smallest where most has to be held.)
FASTER = (
    "peak", "peak_32", "peak_tf32", "peak_8bit", "hbm", "inside", "reached", "reached_8bit", "hbm_share",
    "sustained", "clock", "card", "achieved", "overlap_tensor", "offload", "attention_achieved", "memory",
)  # fmt: skip
SLOWER = (
    "launch", "latency_inside", "latency_between", "oversubscription", "fill", "least", "collective_launches",
    "compiled_launches", "imbalance", "context", "fragmentation", "vocabulary", "channels",
)  # fmt: skip


@dataclass(frozen=True)
class Range:
    """A number known only to lie between two, and the likely one."""

    low: float
    likely: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.likely <= self.high:
            raise ValueError(
                f"a range is low <= likely <= high; got {self.low}, {self.likely}, {self.high}"
            )


def ends(value: Any) -> tuple[Any, ...]:
    """A number alone, both ends of a range, nothing of what is neither."""
    if isinstance(value, Range):
        return (value.low, value.high)
    return (value,) if isinstance(value, (int, float)) else ()


def check_ranges(given: Any) -> None:
    """Raises ValueError for a range where this dataclass needs one number."""
    for field in fields(given):
        if isinstance(getattr(given, field.name), Range) and field.type != "Any":
            able = ", ".join(each.name for each in fields(given) if each.type == "Any")
            raise ValueError(
                f"{field.name} is one number; a range may be {able or 'none of these'}"
            )


def ranges(given: tuple[Any, ...]) -> list[tuple[int, str]]:
    """(which dataclass, which field) of every range in these."""
    return [
        (i, field.name)
        for i, each in enumerate(given)
        if is_dataclass(each)
        for field in fields(each)
        if isinstance(getattr(each, field.name), Range)
    ]


def likely(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same dataclasses with the likely number in place of each range."""
    return _with(given, dict.fromkeys(ranges(given), "likely"))


def corners(given: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The same with each range at one of its ends: all choices of ends that may be the fastest or the slowest.

    Rates move together, all at the faster end or all at the slower one. Of the others all combinations are made.

    Raises ValueError for more than MOST of these.
    """
    found = ranges(given)
    if not found:
        return
    known = [each for each in found if each[1] in FASTER + SLOWER]
    others = [each for each in found if each not in known]
    if len(others) > MOST:
        names = ", ".join(name for _, name in others)
        raise ValueError(f"at most {MOST} ranges beside rates; got {len(others)}: {names}")
    for fast in (True, False):
        tied = {each: "high" if (each[1] in FASTER) == fast else "low" for each in known}
        for chosen in itertools.product(("low", "high"), repeat=len(others)):
            yield _with(given, tied | dict(zip(others, chosen, strict=True)))


def _with(given: tuple[Any, ...], ends: dict[tuple[int, str], str]) -> tuple[Any, ...]:
    changes: dict[int, dict[str, Any]] = {}
    for (i, name), end in ends.items():
        changes.setdefault(i, {})[name] = getattr(getattr(given[i], name), end)
    return tuple(
        replace(each, **changes[i]) if i in changes else each for i, each in enumerate(given)
    )
