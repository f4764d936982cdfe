"""What is kept of many layouts while they are scanned, and when a whole group of them is not worth a look."""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass
from typing import Protocol

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


class Keeper(Protocol):
    """found: what is kept, the fewest seconds first."""

    found: list[Candidate]

    def hopeless(self, seconds: float, nbytes: float) -> bool:
        """Whether what takes at least so long, and at least so many bytes, would not be kept."""

    def offer(self, one: Candidate) -> None:
        """Keeps it, or not."""


class Fastest:
    """So many of them. Nothing that is left out is below the last one's seconds."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.found: list[Candidate] = []

    @property
    def limit(self) -> float:
        """Seconds from which on nothing is kept."""
        return math.inf if len(self.found) < self.number else self.found[-1].seconds

    def hopeless(self, seconds: float, nbytes: float) -> bool:
        return seconds >= self.limit

    def offer(self, one: Candidate) -> None:
        insort(self.found, one, key=lambda each: each.seconds)
        del self.found[self.number :]


class Below:
    """All that might take less than so many seconds."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.found: list[Candidate] = []

    def hopeless(self, seconds: float, nbytes: float) -> bool:
        return seconds >= self.limit

    def offer(self, one: Candidate) -> None:
        if not self.hopeless(one.seconds, one.nbytes):
            insort(self.found, one, key=lambda each: each.seconds)


class Frontier:
    """Those to which none is better in both, seconds and bytes. tolerance: better by less than this part is not."""

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
