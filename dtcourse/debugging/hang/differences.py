"""Ranks that made different calls where they should have made the same: the n-th collective of a group is one call."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from dtcourse.debugging.hang.records import Call, Records


@dataclass(frozen=True)
class Difference:
    """The first collective of a group in which its ranks differ, and which not all of them have finished.

    kind: "order" (another operation), "shape", "dtype", or "argument" (op, root)
    odd:  the ranks that differ from most; all of them where there is no majority
    """

    kind: str
    calls: dict[int, Call]
    odd: list[int]

    @property
    def others(self) -> list[int]:
        """The ranks that are in one call, where there is a majority."""
        return [rank for rank in self.calls if rank not in self.odd]


def first_difference(records: Records) -> Difference | None:
    """The one that began first over all groups; None where all ranks called alike, as far as the records go."""
    places = {
        (call.group, call.seq)
        for record in records.of.values()
        for call in record.calls
        if not call.is_message
    }
    found = [d for place in places if (d := _difference(records, *place)) is not None]
    return max(found, key=lambda d: min(c.begun for c in d.calls.values()), default=None)


def _difference(records: Records, group: str, seq: int) -> Difference | None:
    called = {rank: records.call(rank, group, seq) for rank in records.of}
    calls = {rank: call for rank, call in called.items() if call is not None}
    if all(call.state == "finished" for call in calls.values()):
        return None
    counts = Counter(call.signature for call in calls.values()).most_common(2)
    if len(counts) < 2:
        return None
    (usual, most), (_, next_most) = counts
    is_majority = most > next_most
    odd = [r for r, call in calls.items() if not is_majority or call.signature != usual]
    reference = next(call for call in calls.values() if call.signature == usual)
    other = next(call for call in calls.values() if call.signature != usual)
    return Difference(_kind(reference, other), calls, sorted(odd))


def _kind(one: Call, other: Call) -> str:
    if one.operation != other.operation:
        return "order"
    if one.elements != other.elements:
        return "shape"
    return "dtype" if one.dtype != other.dtype else "argument"


def first_other_line(records: Records, group: str, rank: int) -> tuple[Call, Call] | None:
    """The first call of a group that `rank` made from another line than all others did alike: (its call, theirs).

    A rank that has left a call out makes the next one in its place.
    """
    for call in records.of[rank].calls:
        if call.group != group or call.is_message:
            continue
        theirs = [c for r in records.of if r != rank and (c := records.call(r, group, call.seq))]
        lines = {str(c.lines[:1]) for c in theirs}
        if len(theirs) > 1 and len(lines) == 1 and str(call.lines[:1]) not in lines:
            return call, theirs[0]
    return None
