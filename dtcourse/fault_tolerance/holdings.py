"""Which step all ranks can go back to, and who sends what: from what each has in memory. No messages here.

    rank 0  has 20 and 30 of its own, 20 and 30 of rank 3
    rank 1  nothing: it is a lost rank's successor                  step 20: rank 2 has that of rank 1
    rank 2  has 20 and 30 of its own, 20 of rank 1                  step 30: nobody has that of rank 1

A state that was half sent is in nobody's holdings. All ranks see the same holdings, and so come to the same plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dtcourse.plural import plural


class StateLost(RuntimeError):
    """No memory has a part of the state any more: it must come from a file."""


class Holdings(NamedTuple):
    """What a process has: it was `rank` of `size`, and kept copies of the rank that is `distance` before it.

    own, neighbours: the steps of which it has its own state, and its neighbour's
    """

    rank: int
    size: int
    distance: int
    own: tuple[int, ...]
    neighbours: tuple[int, ...]

    @property
    def neighbour(self) -> int:
        """Whose copies it keeps."""
        return (self.rank - self.distance) % self.size

    def has(self, whose: int, step: int) -> bool:
        """Whether it has that rank's state after that step."""
        return (whose == self.rank and step in self.own) or (
            whose == self.neighbour and step in self.neighbours
        )


class Move(NamedTuple):
    """Rank `src` sends the state of rank `whose` to `dst`; where they are one rank, it has it."""

    whose: int
    src: int
    dst: int


class Plan(NamedTuple):
    """step: after which all go on;  own: each gets its own state;  copies: then each holder gets its neighbour's."""

    step: int
    own: list[Move]
    copies: list[Move]


def plan(everyone: Sequence[Holdings | None], distance: int) -> Plan:
    """everyone: by rank of the new group, None for a successor;  distance: of the copies from now on.

    Raises StateLost where no step's state is there for all ranks, or the old group had another size.
    """
    size = len(everyone)
    held = {rank: one for rank, one in enumerate(everyone) if one is not None}
    if others := sorted({one.size for one in held.values()} - {size}):
        raise StateLost(
            f"the copies are of the parts of {others[0]} ranks, and there are {size} now: parts of {size} are made "
            "from a checkpoint"
        )
    steps = sorted({s for one in held.values() for s in (*one.own, *one.neighbours)}, reverse=True)
    for step in steps:
        own = [Move(r, src, r) for r in range(size) if (src := _source(held, r, step)) is not None]
        if len(own) < size:
            continue
        holders = [(r, (r + distance) % size) for r in range(size)]
        copies = [Move(r, h if h in held and held[h].has(r, step) else r, h) for r, h in holders]
        return Plan(step, own, copies)
    raise StateLost(_why(held, size, steps))


def _source(held: dict[int, Holdings], whose: int, step: int) -> int | None:
    """Who gives a rank its state: itself where it can, else who was that rank, else the holder of its copy."""
    able = [rank for rank, one in held.items() if one.has(whose, step)]
    first = [r for r in able if r == whose] + [r for r in able if held[r].rank == whose]
    return (first + able)[0] if able else None


def _why(held: dict[int, Holdings], size: int, steps: list[int]) -> str:
    """Which ranks were lost, and why nobody has their states."""
    old = {one.rank: one for one in held.values()}
    distance = next(iter(old.values())).distance
    lost = [rank for rank in range(size) if rank not in old]
    together = [(r, h) for r in lost if (h := (r + distance) % size) not in old]
    if together:
        pairs = "; ".join(f"rank {r} and rank {h}, which kept its copy," for r, h in together)
        said = f"{pairs} were lost together"
    else:
        said = (
            f"{plural(len(lost), 'rank')} ({', '.join(map(str, lost))}) lost before a copy was complete on all ranks "
            f"(steps in memory: {sorted(steps)})"
        )
    return f"{said}: no memory has all of the state any more. Load the newest checkpoint"
