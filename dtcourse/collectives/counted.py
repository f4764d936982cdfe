"""What was counted: rows of messages and bytes, and every sum over them. `traffic` is what counts.

A row says which rank sent or received how much, in which operation and phase of the step, to or from whom. Where gloo
or NCCL did the work nobody has seen a message: such rows hold *algorithmic* bytes, no peer, and the table says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dtcourse.collectives.axis_table import Lines, by_axis
from dtcourse.plural import plural

SENT, RECEIVED = "sent", "received"


class Row(NamedTuple):
    """Messages that one rank exchanged with one peer in one operation.

    rank, peer: ranks of the default group; peer is None where a row counts algorithmic volume
    direction:  "sent" or "received"
    axis:       of the mesh whose group they went over; empty where that is no mesh's
    """

    rank: int
    operation: str
    phase: str
    direction: str
    peer: int | None
    messages: int
    bytes: int
    axis: str = ""


@dataclass
class RankRecord:
    """What one rank counted: plain data, to be sent to the notebook."""

    rows: list[Row]
    calls: dict[tuple[int, str, str], int] = field(default_factory=dict)
    algorithmic: bool = False


class Traffic:
    """The messages of one or of all ranks. Every number is a sum over the rows that match what is given.

    call_counts: {(rank, operation, phase): how often it was called}
    """

    def __init__(
        self,
        rows: Iterable[Row] = (),
        calls: dict[tuple[int, str, str], int] | None = None,
        algorithmic: bool = False,
    ) -> None:
        self._rows = list(rows)
        self.call_counts = dict(calls or {})
        self.algorithmic = algorithmic

    @classmethod
    def from_ranks(cls, records: Iterable[RankRecord | None]) -> Traffic:
        """One Traffic from what `collect()` returned in each rank."""
        present = [record for record in records if record is not None]
        return cls(
            [row for record in present for row in record.rows],
            {key: n for record in present for key, n in record.calls.items()},
            any(record.algorithmic for record in present),
        )

    def select(
        self,
        *,
        rank: int | None = None,
        operation: str | None = None,
        phase: str | None = None,
        direction: str | None = None,
        peer: int | None = None,
        axis: str | None = None,
    ) -> list[Row]:
        """The rows that match everything given."""
        wanted = {"rank": rank, "operation": operation, "phase": phase, "direction": direction}
        wanted |= {"peer": peer, "axis": axis}
        wanted = {name: value for name, value in wanted.items() if value is not None}
        return [r for r in self.rows if all(getattr(r, k) == v for k, v in wanted.items())]

    def bytes_sent(
        self,
        rank: int | None = None,
        operation: str | None = None,
        phase: str | None = None,
        peer: int | None = None,
        axis: str | None = None,
    ) -> int:
        """Bytes of payload sent, by one rank or by all (rank=None); peer is whom they went to."""
        return self._sum("bytes", SENT, rank, operation, phase, peer, axis)

    def messages_sent(
        self,
        rank: int | None = None,
        operation: str | None = None,
        phase: str | None = None,
        peer: int | None = None,
        axis: str | None = None,
    ) -> int:
        """How many messages these bytes were sent in."""
        return self._sum("messages", SENT, rank, operation, phase, peer, axis)

    def bytes_received(
        self,
        rank: int | None = None,
        operation: str | None = None,
        phase: str | None = None,
        peer: int | None = None,
        axis: str | None = None,
    ) -> int:
        """Bytes of payload received; peer is whom they came from."""
        return self._sum("bytes", RECEIVED, rank, operation, phase, peer, axis)

    def messages_received(
        self,
        rank: int | None = None,
        operation: str | None = None,
        phase: str | None = None,
        peer: int | None = None,
        axis: str | None = None,
    ) -> int:
        """How many messages these bytes came in."""
        return self._sum("messages", RECEIVED, rank, operation, phase, peer, axis)

    def _sum(
        self,
        column: str,
        direction: str,
        rank: int | None,
        operation: str | None,
        phase: str | None,
        peer: int | None,
        axis: str | None,
    ) -> int:
        chosen = self.select(
            rank=rank, operation=operation, phase=phase, direction=direction, peer=peer, axis=axis
        )
        return sum(getattr(row, column) for row in chosen)

    def calls(
        self, rank: int | None = None, operation: str | None = None, phase: str | None = None
    ) -> int:
        """How often a collective was called (a call of all four ranks counts four times unless `rank` is given)."""
        return sum(
            n
            for (r, o, p), n in self.call_counts.items()
            if rank in (None, r) and operation in (None, o) and phase in (None, p)
        )

    @property
    def rows(self) -> list[Row]:
        """What was counted, a row for each rank, operation, phase, direction, peer and axis."""
        return self._rows

    @property
    def ranks(self) -> list[int]:
        return sorted({row.rank for row in self.rows} | {rank for rank, _, _ in self.call_counts})

    @property
    def operations(self) -> list[str]:
        """Names of the operations, in the order in which they were first used."""
        return list(
            dict.fromkeys([r.operation for r in self.rows] + [o for _, o, _ in self.call_counts])
        )

    @property
    def axes(self) -> list[str]:
        """Names of the mesh's axes whose groups were used, in the order in which they first were."""
        return [axis for axis in dict.fromkeys(row.axis for row in self.rows) if axis]

    def matrix(self, *, axis: str | None = None, phase: str | None = None) -> list[list[int]]:
        """bytes[src][dst] over all pairs of ranks; only where messages were counted exactly."""
        size = max([*self.ranks, *(row.peer or 0 for row in self.rows), -1]) + 1
        counts = [[0] * size for _ in range(size)]
        for row in self.select(direction=SENT, axis=axis, phase=phase):
            if row.peer is not None:
                counts[row.rank][row.peer] += row.bytes
        return counts

    def matrices(self, *, phase: str | None = None) -> dict[str, list[list[int]]]:
        """The matrix of each axis, for plots.traffic_by_axis; what went over no axis is in none of them."""
        return {axis: self.matrix(axis=axis, phase=phase) for axis in self.axes}

    def by_axis(
        self,
        *,
        phase: str | None = None,
        steps: int = 1,
        formula: Mapping[tuple[str, str], int] | None = None,
    ) -> Lines:
        """Per step, what all ranks together sent on each axis of the mesh: a dict for each axis and operation.

        phase:   count this one alone (`with traffic.phase("step"): ...`)
        steps:   how many were counted, all equal
        formula: {(axis, operation): bytes of a step that all ranks send}: gets a column beside, and the ratio

        Raises ValueError where messages or bytes do not divide by steps.
        """
        return by_axis(self.select(direction=SENT, phase=phase), steps, formula, self.algorithmic)

    def table(self) -> Lines:
        """One dict a rank, operation and phase: for pandas, or to print."""
        lines: dict[tuple[int, str, str], dict[str, int | str]] = {}
        keys = [(row.rank, row.operation, row.phase) for row in self.rows] + list(self.call_counts)
        for key in sorted(dict.fromkeys(keys)):
            rank, operation, phase = key
            lines[key] = {
                "rank": rank,
                "operation": operation,
                "phase": phase,
                "calls": self.call_counts.get(key, 0),
                "messages sent": self.messages_sent(*key),
                "bytes sent": self.bytes_sent(*key),
                "messages received": self.messages_received(*key),
                "bytes received": self.bytes_received(*key),
            }
        return Lines(lines.values())

    def __str__(self) -> str:
        rows = self.table()
        if self.algorithmic:  # nobody has seen a message, so there is none to count
            rows = Lines(
                {
                    name.replace("bytes sent", "algorithmic bytes"): value
                    for name, value in row.items()
                    if "messages" not in name and "received" not in name
                }
                for row in rows
            )
        return str(rows)

    def __repr__(self) -> str:
        kind = "algorithmic bytes" if self.algorithmic else "bytes"
        messages = "" if self.algorithmic else f"{self.messages_sent():,} messages, "
        return (
            f"Traffic({plural(len(self.ranks), 'rank')}, {messages}"
            f"{self.bytes_sent():,} {kind} sent: {', '.join(self.operations) or 'nothing'})"
        )
