"""What the checks of several exercises ask of samples, and random states for ranks."""

from __future__ import annotations

import random
from collections import Counter

from dtcourse.course.judging.requirements import require


def seeds() -> list[int]:
    """A random state for each of five ranks."""
    return [random.randrange(2**31) for _ in range(5)]


def counted(read: list[int], total: int, words: str, twice: str, lost: str) -> None:
    """Refuses samples that are read twice, not at all, or that there are not."""
    times = Counter(read)
    strange = sorted(set(times) - set(range(total)))
    require(
        not strange,
        f"{words}: index {strange[:1]} was read, and there are samples 0 to {total - 1}.",
    )
    again = [i for i, n in times.items() if n > 1]
    require(
        not again,
        f"{words}: {len(again)} of {total} samples are read more than once, sample {min(again, default=0)} "
        f"{times[min(again, default=0)]} times. {twice}",
    )
    never = [i for i in range(total) if i not in times]
    require(
        not never,
        f"{words}: {len(never)} of {total} samples are never read, sample {min(never, default=0)} among them. {lost}",
    )
