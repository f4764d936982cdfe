"""diagnose_hang: from the records of all ranks after a hang, one sentence on which rank did what instead.

What is looked for, in this order, since each explains those after it:

    a handle that is waited for twice        gloo's wait() for a message returns once
    a collective in which the ranks differ   another operation, shape, dtype, op or root at the same place of a group
    a wrong group                            the call that is missing was made on another group
    a rank that has not come                 it left, left no record, or is somewhere else
    ranks that wait in a circle              all send first, all receive first, or mixed

Nothing is said of ranks that wait for nobody: a straggler is no hang before `patience` is over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dtcourse.debugging.hang.differences import Difference, first_difference, first_other_line
from dtcourse.debugging.hang.records import Call, Record, Records, read_records
from dtcourse.debugging.hang.waits import Chain, blocked_calls, chain_of, on_another_group
from dtcourse.debugging.hang.words import in_words, numbered
from dtcourse.debugging.sentences import place, ranks_in_words

PATIENCE = 1.0


@dataclass(frozen=True)
class Diagnosis:
    """What was found. False where nothing was.

    kind:      "twice", "order", "shape", "dtype", "argument", "group", "left", "no record", "elsewhere", "sends",
               "receives", "tag", "circle"; empty where nothing was found
    ranks:     that did it
    operation: in which;  line: of the reader's, "file.py:12 (its text)"
    sentence:  all of that
    notes:     what the records could not say
    """

    kind: str = ""
    ranks: list[int] = field(default_factory=list)
    operation: str = ""
    line: str = ""
    sentence: str = ""
    notes: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.kind)

    def __str__(self) -> str:
        said = self.sentence or "Nothing is found: no rank waits for one that does something else."
        return "\n".join([said, *(f"({note})" for note in self.notes)])


def diagnose_hang(records: str | Path | Records, patience: float = PATIENCE) -> Diagnosis:
    """Which rank did what instead, by the records that the ranks left in a folder (or by read_records').

    patience: seconds that a wait may take and be no hang

    Raises ValueError where there is no record.
    """
    if not isinstance(records, Records):
        records = read_records(records)
    blocked = blocked_calls(records, patience)
    found = Diagnosis()
    if blocked:
        found = _twice(blocked) or _differing(records) or _waiting(records, blocked)
    return Diagnosis(
        found.kind, found.ranks, found.operation, found.line, found.sentence, records.notes
    )


def _twice(blocked: dict[int, Call]) -> Diagnosis:
    again = {rank: call for rank, call in blocked.items() if call.waits and call.is_message}
    if not again:
        return Diagnosis()
    rank, call = next(iter(again.items()))
    others = sorted(set(again) - {rank})
    too = f", and so do {ranks_in_words(others)} for theirs" if len(others) > 1 else ""
    too = f", and so does {ranks_in_words(others)} for its own" if len(others) == 1 else too
    return Diagnosis(
        "twice",
        sorted(again),
        call.operation,
        place(call.waiting_at),
        f"Rank {rank} waits a second time for its {in_words(call)} at {place(call.waiting_at)}{too}: it had waited for "
        f"that handle at {place(call.waited)}, and on gloo a second wait() for a message never returns.",
    )


def _differing(records: Records) -> Diagnosis:
    found = first_difference(records)
    if found is None:
        return Diagnosis()
    odd = found.calls[found.odd[0]]
    said = _one_against_others(found) if found.others else _each(found)
    return Diagnosis(found.kind, found.odd, odd.operation, place(odd.lines), said)


def _one_against_others(found: Difference) -> str:
    odd, usual = found.calls[found.odd[0]], found.calls[found.others[0]]
    who = ranks_in_words(found.odd).capitalize()
    return (
        f"{who} called {in_words(odd)} at {place(odd.lines)} as call {odd.seq} of {odd.group}, where "
        f"{ranks_in_words(found.others)} called {in_words(usual)} at {place(usual.lines)}."
    )


def _each(found: Difference) -> str:
    parts = [f"rank {r} called {in_words(c)} at {place(c.lines)}" for r, c in found.calls.items()]
    call = next(iter(found.calls.values()))
    return f"As call {call.seq} of {call.group}, {'; '.join(parts)}."


def _waiting(records: Records, blocked: dict[int, Call]) -> Diagnosis:
    chain = chain_of(records, blocked)
    if chain is None:
        return Diagnosis()
    return (
        _wrong_group(records, chain, blocked)
        or _wrong_tag(records, chain)
        or (_circle(chain) if chain.is_cycle else _absent(records, chain, blocked))
    )


def _wrong_group(records: Records, chain: Chain, blocked: dict[int, Call]) -> Diagnosis:
    candidates = []
    for wait in chain.waits:
        instead = None if wait.call.is_message else on_another_group(records, wait.call, wait.on)
        if instead is not None:
            candidates.append((len(_in(blocked, wait.call)), wait, instead))
    if not candidates:
        return Diagnosis()
    _, wait, instead = max(candidates, key=lambda candidate: candidate[0])
    return Diagnosis(
        "group",
        [wait.on],
        instead.operation,
        place(instead.lines),
        f"Rank {wait.on} called {in_words(instead)} on {instead.group} at {place(instead.lines)}, where "
        f"{_who_wait(blocked, wait.call)} in it on {wait.call.group} at {place(wait.call.lines)}.",
    )


def _wrong_tag(records: Records, chain: Chain) -> Diagnosis:
    """A message under way between the two ends, with another tag than the one that is waited for."""
    for wait in chain.waits:
        call = wait.call
        if not call.is_message or wait.on not in records.of:
            continue
        kind = "recv" if call.kind == "send" else "send"
        for other in records.of[wait.on].calls:
            fits = other.kind == kind and other.peer == call.rank and other.group == call.group
            if fits and other.state == "started" and other.tag != call.tag:
                one, two = sorted((call, other), key=lambda c: c.kind)  # the receive first
                return Diagnosis(
                    "tag",
                    sorted([wait.rank, wait.on]),
                    one.operation,
                    place(one.lines),
                    f"Rank {one.rank} waits in {in_words(one)} at {place(one.lines)}, where rank {two.rank} called "
                    f"{in_words(two)} at {place(two.lines)}.",
                )
    return Diagnosis()


def _circle(chain: Chain) -> Diagnosis:
    kinds = {wait.call.kind for wait in chain.waits}
    names = {"send": "sends", "recv": "receives"}
    kind = names.get(kinds.pop(), "circle") if len(kinds) == 1 else "circle"
    why = {
        "sends": "each sends first, and a send waits for its receive",
        "receives": "each receives first, and nobody has sent",
        "circle": "each waits for the next",
    }[kind]
    parts = [
        f"rank {w.rank} in {in_words(w.call)} at {place(w.call.lines)}"
        + ("" if w.call.is_message else f" on {w.call.group}, for rank {w.on}")
        for w in chain.waits
    ]
    first = chain.waits[0].call
    ranks = sorted(wait.rank for wait in chain.waits)
    said = f"{ranks_in_words(ranks).capitalize()} wait in a circle, {why}: {'; '.join(parts)}."
    return Diagnosis(kind, ranks, first.operation, place(first.lines), said)


def _absent(records: Records, chain: Chain, blocked: dict[int, Call]) -> Diagnosis:
    rank, last = chain.reason, chain.waits[-1]
    missed = last.call
    record = records.of.get(rank)
    if record is None:
        kind, what, line = "no record", "left no record (it was killed, or wrote elsewhere)", ""
    elif record.left:
        kind, what, line = "left", f"left ({record.left})", _last_place(record)
    else:
        kind, line = "elsewhere", place(record.at)
        what = f"was in no call, at {line},"
    in_it = numbered(missed) if not missed.is_message else in_words(missed)
    said = f"Rank {rank} {what} and has not come to {in_it}, where "
    said += f"{_who_wait(blocked, missed)} at {place(missed.lines)}"
    if record is not None and not missed.is_message:
        said += _skipped(records, missed.group, rank)
    if len(chain.waits) > 1:
        behind = [f"rank {w.rank} in {in_words(w.call)}" for w in chain.waits[:-1]]
        said += f"; behind it {'waits' if len(behind) == 1 else 'wait'} {', '.join(behind)}"
    return Diagnosis(kind, [rank], missed.operation, line, said + ".")


def _skipped(records: Records, group: str, rank: int) -> str:
    """Where its calls stopped being the others' calls; else which was its last."""
    other = first_other_line(records, group, rank)
    if other is not None:
        its, theirs = other
        return (
            f"; from call {its.seq} of {group} on its calls are others: that one it made at {place(its.lines)}, "
            f"the others at {place(theirs.lines)}"
        )
    its_calls = [c for c in records.of[rank].calls if c.group == group and not c.is_message]
    if not its_calls:
        return ""
    return f"; its last there was {in_words(its_calls[-1])} at {place(its_calls[-1].lines)}"


def _last_place(record: Record) -> str:
    return place(record.calls[-1].lines) if record.calls else ""


def _in(blocked: dict[int, Call], call: Call) -> list[int]:
    """The ranks that wait in the same call."""
    if call.is_message:
        return [call.rank]
    place = (call.group, call.seq)  # of collectives: messages are numbered by themselves
    return sorted(r for r, c in blocked.items() if not c.is_message and (c.group, c.seq) == place)


def _who_wait(blocked: dict[int, Call], call: Call) -> str:
    ranks = _in(blocked, call)
    return f"{ranks_in_words(ranks)} {'waits' if len(ranks) == 1 else 'wait'}"
