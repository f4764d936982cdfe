"""What the pictures of messages are drawn from: messages, and what every rank holds between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dtcourse.plots.units import plain_text
from dtcourse.plural import plural

State = Sequence[Sequence[Any]]
"""What every rank holds at one moment: for each rank a list of Chunk, text, number or None (nothing yet)."""


@dataclass(frozen=True)
class Message:
    """One message: in which step (from 0), from which rank to which.

    label: written beside its arrow; bytes: written there when there is no label
    chunk: the column (or columns) of the receiver's buffer that it lands in, which are outlined
    """

    step: int
    src: int
    dst: int
    label: str = ""
    bytes: int = 0
    chunk: int | Sequence[int] | None = None


@dataclass(frozen=True)
class Chunk:
    """One cell of a rank's buffer: its text, and the ranks whose contribution is in it (a stripe of colour each)."""

    text: str = ""
    ranks: tuple[int, ...] = ()

    @classmethod
    def from_powers(cls, value: float, base: int = 10) -> Chunk:
        """A sum that says who is in it: rank r began with base**r, so 1101 holds ranks 0, 2 and 3.

        A contribution that was added twice has two stripes (and its digit is a 2).
        """
        number = round(float(value))
        ranks: list[int] = []
        rest, rank = number, 0
        while rest > 0:
            rest, digit = divmod(rest, base)
            ranks += [rank] * digit
            rank += 1
        return cls(str(number), tuple(ranks))


def from_replay(replay: Any, *, powers: bool = True) -> tuple[list[Message], list[State]]:
    """(messages, states) of a real run's `profiling.replay.Replay`, for the functions below.

        plots.message_stepper(*plots.from_replay(Replay.of(run.timeline, starts)))

    powers: rank r began with 10**r, so each number says whose contributions are in it
    """
    messages = [
        Message(
            step, move.src, move.dst, bytes=move.bytes,
            chunk=range(move.offset, move.offset + len(move.values)),
        )
        for step, moves in enumerate(replay.steps)
        for move in moves
    ]  # fmt: skip
    states: list[State] = [
        [
            [None if v is None else Chunk.from_powers(v) if powers else v for v in buffer]
            for buffer in state
        ]
        for state in replay.states
    ]
    return messages, states


def frames_of(messages: Sequence[Message], states: Sequence[State]) -> list[list[Message]]:
    """Messages by panel, the start's empty list first; everything that does not fit together is refused."""
    if not states or not states[0]:
        raise ValueError("states is a list over time of a list over ranks; got none")
    ranks = len(states[0])
    for t, state in enumerate(states):
        if len(state) != ranks:
            raise ValueError(
                f"states[{t}] has {plural(len(state), 'rank')}, and states[0] has {ranks}"
            )
    frames: list[list[Message]] = [[] for _ in states]
    for m in messages:
        if not 0 <= m.step < len(states) - 1:
            raise ValueError(
                f"{m}: its step has no state after it; {plural(len(states), 'state')}: the start and "
                f"{plural(len(states) - 1, 'step')}, 0 to {len(states) - 2}"
            )
        if not (0 <= m.src < ranks and 0 <= m.dst < ranks) or m.src == m.dst:
            raise ValueError(f"{m}: src and dst are two of the {ranks} ranks, 0 to {ranks - 1}")
        frames[m.step + 1].append(m)
    return frames


def as_chunk(cell: Any) -> Chunk | None:
    """A cell as it was given, as what is drawn."""
    if cell is None or isinstance(cell, Chunk):
        return cell
    if isinstance(cell, str):
        return Chunk(cell)
    return Chunk(plain_text(float(cell)))


def readable(states: Sequence[State]) -> list[list[list[Chunk | None]]]:
    """Cells as Chunks. Where texts are too long for a cell, each is replaced by its number of contributions."""
    cells = [[[as_chunk(c) for c in buffer] for buffer in state] for state in states]
    every = [c for state in cells for buffer in state for c in buffer if c is not None]
    if max((len(c.text) for c in every), default=0) > 5 and all(c.ranks for c in every):
        cells = [
            [[c and replace(c, text=str(len(c.ranks))) for c in buffer] for buffer in state]
            for state in cells
        ]
    return cells
