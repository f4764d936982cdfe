"""What a source does not say is a range, and what is predicted from it an interval.

    Hardware.of("A100 SXM", share=Range(0.7, 0.85, 0.95))
    predict(...).interval                                  # (fastest, slowest)

Any number of the planner's dataclasses may be one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

CORNERS = 5  # with more ranges than this, each is moved alone, and not all combinations


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
    """The same with each range at one of its ends: all combinations of up to five, of more each alone."""
    found = ranges(given)
    if len(found) <= CORNERS:
        for ends in itertools.product(("low", "high"), repeat=len(found)):
            yield _with(given, dict(zip(found, ends, strict=True)))
        return
    for where in found:
        for end in ("low", "high"):
            yield _with(given, {each: end if each == where else "likely" for each in found})


def _with(given: tuple[Any, ...], ends: dict[tuple[int, str], str]) -> tuple[Any, ...]:
    made = list(given)
    for (i, name), end in ends.items():
        made[i] = replace(made[i], **{name: getattr(getattr(given[i], name), end)})
    return tuple(made)
