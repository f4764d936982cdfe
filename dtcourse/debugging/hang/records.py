"""The flight recorder's records of all ranks of a run, read back: what is there, and what is not.

A file that was cut off has its newest calls still (they come first) and is read as far as it goes; one of another run
is left out; a rank without a file is named. `notes` says so, and what can be found is found from the rest.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from dtcourse.collectives.flight.record import FORMAT, file_of
from dtcourse.collectives.flight.switch import VARIABLE


def recorded_in(folder: str | Path, hang_after: float | None = None) -> dict[str, str]:
    """The environment that has ranks record, and write into `folder`: launch(..., env=recorded_in("records")).

    hang_after: seconds that a call may wait before all ranks write their records, launch's time limit apart
    """
    more = {} if hang_after is None else {f"{VARIABLE}_HANG": str(hang_after)}
    return {VARIABLE: str(Path(folder).resolve()), **more}


@dataclass(frozen=True)
class Call:
    """One collective or message of one rank; flight/entry.py says what each of its fields is."""

    rank: int
    number: int
    operation: str
    group: str
    seq: int
    sizes: list[list[int]]
    dtype: str
    detail: dict[str, Any]
    peer: int | None
    tag: int
    lines: list[list[Any]]
    state: str
    error: str
    asynchronous: bool
    dropped: bool
    waits: int
    waited: list[list[Any]]
    waiting: float | None
    waiting_at: list[list[Any]]
    begun: float

    @property
    def is_message(self) -> bool:
        """A send or a receive, not a collective."""
        return self.kind in ("send", "recv")

    @property
    def kind(self) -> str:
        """The operation, whether or not its caller goes on."""
        return self.operation.removeprefix("i")

    @property
    def elements(self) -> list[int]:
        """Of each tensor that must be alike on all ranks."""
        return [prod(size) for size in self.sizes]

    @property
    def signature(self) -> tuple[Any, ...]:
        """What must be the same on all ranks that meet in it."""
        return (self.operation, str(self.elements), self.dtype, str(sorted(self.detail.items())))


@dataclass(frozen=True)
class Record:
    """What one rank left.

    left:  how it left, where it had: "returned", "raised ValueError: ..."; at: the reader's lines that it was in else
    calls: the last ones, oldest first
    """

    rank: int
    world_size: int
    run: str
    left: str
    at: list[list[Any]]
    written: float
    groups: dict[str, list[int]]
    collectives: dict[str, int]
    messages: dict[tuple[str, str, int | None, int], int]
    calls: list[Call]

    def posted(self, group: str, kind: str, peer: int | None, tag: int) -> int:
        """How many sends to, or receives from, a rank it has posted; receives from anybody are for each."""
        mine = self.messages.get((group, kind, peer, tag), 0)
        return mine + (self.messages.get((group, kind, None, tag), 0) if kind == "recv" else 0)

    def blocked(self, patience: float) -> Call | None:
        """The call that it has waited in for so many seconds: the one that it called first."""
        waiting = [c for c in self.calls if c.waiting is not None and c.waiting >= patience]
        if not waiting and not self.left and self.at:
            # C++ waits for what C++ has called (DDP at the end of backward): we are still at the line that led there.
            waiting = [
                c
                for c in self.calls
                if c.state == "started" and c.lines[:1] == self.at[:1] and c.begun >= patience
            ]
        return waiting[0] if waiting else None


@dataclass
class Records:
    """Those of one run, by rank, and what is to be said of the others."""

    of: dict[int, Record] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def world_size(self) -> int:
        return max((record.world_size for record in self.of.values()), default=0)

    def call(self, rank: int, group: str, seq: int) -> Call | None:
        """A rank's collective of that number of a group, where the ring still has it."""
        found = self.of.get(rank)
        calls = found.calls if found else []
        return next(
            (c for c in calls if c.group == group and c.seq == seq and not c.is_message), None
        )

    def ranks_of(self, group: str) -> list[int]:
        """Of a group, by what any of its ranks says."""
        said = [record.groups[group] for record in self.of.values() if group in record.groups]
        return said[0] if said else []


def read_records(folder: str | Path) -> Records:
    """Reads what the ranks of a run have left in a folder.

    Raises ValueError where there is no record.
    """
    folder, found = Path(folder), Records()
    # A rank's log may lie beside its record.
    files = sorted(f for f in folder.glob("rank-*.jsonl") if not f.name.endswith(".log.jsonl"))
    if not files:
        raise ValueError(
            f"no rank has left a record in {str(folder)!r} (rank-0.jsonl, ...): record with "
            "launch(..., env=recorded_in(folder)), flight.start(folder) in each rank, or "
            "-m dtcourse.debugging --record"
        )
    read = []
    for file in files:
        try:
            read.append(_read(file, found.notes))
        except (ValueError, KeyError, TypeError) as error:
            found.notes.append(
                f"{file.name} cannot be read ({type(error).__name__}: {error}): nothing is said of that rank"
            )
    runs = Counter(record.run for record in read if record.run)
    newest = {run: max(r.written for r in read if r.run == run) for run in runs}
    ours = max(runs, key=lambda run: (runs[run], newest[run]), default="")
    for record in read:
        if record.run in ("", ours):
            found.of[record.rank] = record
        else:
            found.notes.append(f"the record of rank {record.rank} is of another run, and left out")
    missing = [str(rank) for rank in range(found.world_size) if rank not in found.of]
    if missing:
        who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(missing)}"
        have = "has" if len(missing) == 1 else "have"
        found.notes.append(f"{who} of {found.world_size} {have} no record of this run")
    return found


# What is counted with, so that a spoiled file is refused where it is read.
_NUMBER = (int, float)
_HEADER: dict[str, Any] = {
    "rank": int, "world_size": int, "run": str, "left": str, "at": list, "written": _NUMBER, "groups": dict,
    "collectives": dict, "messages": list, "entries": int,
}  # fmt: skip
_CALL: dict[str, Any] = {
    "number": int, "operation": str, "group": str, "seq": int, "sizes": list, "detail": dict, "lines": list,
    "waits": int, "waited": list, "waiting_at": list, "begun": _NUMBER,
}  # fmt: skip


def _check(given: dict[str, Any], kinds: dict[str, Any]) -> None:
    for name, kind in kinds.items():
        if not isinstance(given[name], kind):
            raise ValueError(f"its {name} is {given[name]!r}")


def _read(file: Path, notes: list[str]) -> Record:
    lines = file.read_text(errors="replace").splitlines()
    header, calls = json.loads(lines[0]) if lines else {}, []
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f"its first line is no record's of format {FORMAT}")
    _check(header, _HEADER)
    if file.name != file_of(file.parent, header["rank"]).name:
        raise ValueError(f"it says that it is of rank {header['rank']}")
    for line in lines[1:]:
        try:
            call = Call(rank=header["rank"], **json.loads(line))
            _check(vars(call), _CALL)
            calls.append(call)
        except (ValueError, TypeError):
            break  # the rest was cut off, or is spoiled
    if len(calls) < header["entries"]:
        notes.append(
            f"the record of rank {header['rank']} is cut off: the newest {len(calls)} of {header['entries']} calls "
            "are there"
        )
    return Record(
        rank=header["rank"],
        world_size=header["world_size"],
        run=header["run"],
        left=header["left"],
        at=header["at"],
        written=header["written"],
        groups=header["groups"],
        collectives=header["collectives"],
        messages={tuple(key): n for *key, n in header["messages"]},  # type: ignore[misc]
        calls=calls[::-1],
    )
