"""What is kept of many layouts while they are scanned, and when a whole group of them is not worth a look."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from dtcourse.planner.layout import Batch, Layout
from dtcourse.planner.software import Software


@dataclass(frozen=True)
class Candidate:
    """seconds: its prediction is not below; nbytes: of the stage that needs most; the rest is what predict() takes."""

    seconds: float
    nbytes: float
    layout: Layout
    batch: Batch
    software: Software

    @property
    def key(self) -> tuple[Layout, Batch, Software]:
        """What would be predicted."""
        return self.layout, self.batch, self.software


class Keeper(Protocol):
    """Keeps some of what it is offered."""

    def hopeless(self, seconds: float, nbytes: float) -> bool:
        """Whether what takes at least so long, and at least so many bytes, would not be kept."""

    def offer(self, one: Candidate) -> None:
        """Keeps it, or not."""


class Fastest:
    """So many of them that take less than `below` seconds, the fewest seconds first: found."""

    def __init__(self, number: int, below: float = math.inf) -> None:
        self.number, self.below = number, below
        self.found: list[Candidate] = []

    @property
    def limit(self) -> float:
        """Seconds that nothing is below which is left out."""
        return self.below if len(self.found) < self.number else self.found[-1].seconds

    def hopeless(self, seconds: float, nbytes: float) -> bool:
        return seconds >= self.limit

    def offer(self, one: Candidate) -> None:
        if not self.hopeless(one.seconds, one.nbytes):
            insort(self.found, one, key=lambda each: each.seconds)
            del self.found[self.number :]


class Frontier:
    """Those to which none is better in both, seconds and bytes, the fewest seconds first: found.

    tolerance: what is better by less than this part is not better
    """

    def __init__(self, tolerance: float) -> None:
        self.more = 1 + tolerance
        self.found: list[Candidate] = []

    def hopeless(self, seconds: float, nbytes: float) -> bool:
        return any(
            one.seconds <= seconds * self.more and one.nbytes <= nbytes * self.more
            for one in self.found
        )

    def offer(self, one: Candidate) -> None:
        if self.hopeless(one.seconds, one.nbytes):
            return
        self.found = [
            each for each in self.found if each.seconds < one.seconds or each.nbytes < one.nbytes
        ]
        insort(self.found, one, key=lambda each: each.seconds)


class Undominated:
    """Predicts all to which no prediction is better in both, seconds and bytes, as far as their bounds tell.

    known:     what was predicted, with `seconds` and `nbytes`, by Candidate.key; more is added
    predicted: what makes such a one
    """

    def __init__(
        self, tolerance: float, known: dict[Any, Any], predicted: Callable[[Candidate], Any]
    ) -> None:
        self.more, self.known, self.predicted = 1 + tolerance, known, predicted
        self.front: list[Any] = []
        for each in known.values():
            self._add(each)

    def _add(self, one: Any) -> None:
        if not any(e.seconds <= one.seconds and e.nbytes <= one.nbytes for e in self.front):
            self.front = [
                each for each in self.front
                if each.seconds < one.seconds or each.nbytes < one.nbytes
            ] + [one]  # fmt: skip

    def hopeless(self, seconds: float, nbytes: float) -> bool:
        return any(
            one.seconds <= seconds * self.more and one.nbytes <= nbytes * self.more
            for one in self.front
        )

    def offer(self, one: Candidate) -> None:
        if one.key not in self.known and not self.hopeless(one.seconds, one.nbytes):
            self.known[one.key] = self.predicted(one)
            self._add(self.known[one.key])
