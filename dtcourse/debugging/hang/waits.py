"""Who waits for whom: from a rank that waits, to the rank that is the reason, or round to where it began."""

from __future__ import annotations

from dataclasses import dataclass

from dtcourse.debugging.hang.records import Call, Records


@dataclass(frozen=True)
class Wait:
    """`rank` waits in `call` for the rank `on`, which has not come to it."""

    rank: int
    call: Call
    on: int


@dataclass(frozen=True)
class Chain:
    """Waits, each on the rank of the next one. `is_cycle`: the last one on the rank of the first."""

    waits: list[Wait]
    is_cycle: bool

    @property
    def reason(self) -> int:
        """The rank that waits for nobody, or that the cycle began with."""
        return self.waits[-1].on


def blocked_calls(records: Records, patience: float) -> dict[int, Call]:
    """The call that each rank waits in, of those that wait for `patience` seconds or longer."""
    found = {rank: record.blocked(patience) for rank, record in records.of.items()}
    return {rank: call for rank, call in found.items() if call is not None}


def chain_of(records: Records, blocked: dict[int, Call]) -> Chain | None:
    """The waits from the rank that has waited for longest; None where nobody is found who has not come."""
    for start in sorted(blocked, key=lambda rank: -(blocked[rank].waiting or blocked[rank].begun)):
        waits: list[Wait] = []
        rank = start
        while rank in blocked:
            seen = [wait.rank for wait in waits]
            if rank in seen:
                return Chain(waits[seen.index(rank) :], is_cycle=True)
            missing = _missing(records, blocked[rank])
            if not missing:
                break
            # Who is in no call at all is nearer to the reason than who waits.
            on = min(missing, key=lambda other: (other in blocked, other))
            waits.append(Wait(rank, blocked[rank], on))
            rank = on
        if waits and rank not in blocked:
            return Chain(waits, is_cycle=False)
    return None


def _missing(records: Records, call: Call) -> list[int]:
    """The ranks that have not come to a call."""
    if not call.is_message:
        others = [r for r in records.ranks_of(call.group) if r != call.rank]
        return [r for r in others if not _has_come(records, r, call)]
    if call.peer is None:  # from any: all that have sent nothing
        others = [r for r in records.ranks_of(call.group) if r != call.rank]
        return others if all(not _has_answered(records, r, call) for r in others) else []
    return [] if _has_answered(records, call.peer, call) else [call.peer]


def _has_come(records: Records, rank: int, call: Call) -> bool:
    there = records.of.get(rank)
    return there is not None and there.collectives.get(call.group, 0) >= call.seq


def _has_answered(records: Records, rank: int, call: Call) -> bool:
    """Whether the other end of a message has been posted."""
    there = records.of.get(rank)
    kind = "recv" if call.kind == "send" else "send"
    return there is not None and there.posted(call.group, kind, call.rank, call.tag) >= call.seq


def on_another_group(records: Records, missed: Call, rank: int) -> Call | None:
    """The call that a rank made on another group, where nobody has joined it, instead of the one that it misses."""
    if rank not in records.of:
        return None
    for call in reversed(records.of[rank].calls):
        same = (call.operation, call.elements, call.dtype) == (
            missed.operation,
            missed.elements,
            missed.dtype,
        )
        if not same or call.is_message or call.group == missed.group:
            continue
        others = [r for r in records.ranks_of(call.group) if r != rank]
        joined = [r for r in others if _has_come(records, r, call)]
        if not joined and (call.state == "started" or call.lines[:1] == missed.lines[:1]):
            return call
    return None
