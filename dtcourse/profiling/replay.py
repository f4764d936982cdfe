"""The recorded messages of a real run, put back into steps: what the pictures of lessons 03 and 04 are drawn from.

A step is what a network of one-port ranks could do at once: each rank sends at most one message and receives at most
one. A message goes into the first step after everything that it had to wait for: whatever its sender received before
sending it, and earlier messages on the same two ports. (The recorded times themselves would show this machine's
scheduler, not the algorithm.)

    run = launch(step, 4, backend="ring", record=True)         # tensors of at most 64 elements keep their values
    replay = Replay.of(run.timeline, starts)                    # starts[rank]: the rank's values before
    replay.steps[0][0].src, replay.states[1][3]                 # who sent in step 0; what rank 3 had after it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dtcourse.events import Event, Timeline

Values = list[float | None]  # of one rank's buffer; None where nothing has arrived yet


@dataclass(frozen=True)
class Move:
    """One message: from rank to rank, with the elements offset .. offset + len(values) of the buffer."""

    src: int
    dst: int
    offset: int
    values: tuple[float, ...]
    bytes: int


@dataclass(frozen=True)
class Replay:
    """steps[i]: the messages of step i.  states[i][rank]: the buffers before step i; the last: at the end."""

    steps: list[list[Move]]
    states: list[list[Values]]

    @classmethod
    def of(
        cls, timeline: Timeline, starts: Sequence[Sequence[float | None]], itemsize: int = 4
    ) -> Replay:
        """Replays one collective, whose buffers began as `starts`, a list of values for each rank.

        What a rank receives in a reducing operation is added to what it has, as long as no contribution is in both;
        otherwise it takes its place. That can be told where the start values are powers of ten (rank r begins with
        10**r): so start with those. Raises ValueError for a timeline without recorded values.
        """
        pairs = _match(timeline)
        placed = _schedule(pairs)
        buffers: list[Values] = [list(values) for values in starts]
        states = [[list(b) for b in buffers]]
        steps: list[list[Move]] = []
        for number in range(max(placed.values(), default=-1) + 1):
            moves = [_move(*pairs[i]) for i in sorted(placed) if placed[i] == number]
            reducing = [_reduces(pairs[i][0]) for i in sorted(placed) if placed[i] == number]
            for move, adds in zip(moves, reducing, strict=True):
                target = buffers[move.dst]
                for i, value in enumerate(move.values, move.offset):
                    has = target[i]
                    target[i] = (
                        has + value if adds and has is not None and _disjoint(has, value) else value
                    )
            steps.append(moves)
            states.append([list(b) for b in buffers])
        return cls(steps, states)


def _match(timeline: Timeline) -> list[tuple[Event, Event]]:
    """Each send with its receive, in the order of arrival."""
    sends: dict[Any, list[Event]] = defaultdict(list)
    receives: dict[Any, list[Event]] = defaultdict(list)
    for event in timeline.of(kind="communication", lane="messages"):
        detail = event.detail
        if event.name == "send":
            if "values" not in detail:
                raise ValueError(
                    f"rank {event.rank} sent {detail['elements']} elements in one message, whose values are not kept: "
                    "replay a run on small tensors, recorded with launch(..., record=True)"
                )
            sends[event.rank, detail["peer"], detail["tag"], detail["elements"]].append(event)
        elif event.name == "recv":
            receives[detail["peer"], event.rank, detail["tag"], detail["elements"]].append(event)
    # messages of one kind between two ranks keep their order
    pairs = [
        pair for key, posted in sends.items() for pair in zip(posted, receives[key], strict=True)
    ]
    # In the order of arrival: where a rank takes messages one after the other, its order is the algorithm's.
    return sorted(pairs, key=lambda pair: (pair[1].end, pair[1].rank))


def _schedule(pairs: list[tuple[Event, Event]]) -> dict[int, int]:
    """The step of each message, by its place in `pairs`: step by step, whatever can go, goes."""
    # What a rank did before it posted a send: its earlier sends, and the receives that were over by then.
    before = [
        {
            j
            for j, (other, arrived) in enumerate(pairs)
            if (other.rank == send.rank and other.start < send.start)
            or (arrived.rank == send.rank and arrived.end <= send.start)
        }
        for send, _ in pairs
    ]
    steps: dict[int, int] = {}
    step = 0
    while len(steps) < len(pairs):
        done, sending, receiving = set(steps), set(), set()
        for i, (send, receive) in enumerate(pairs):
            free = send.rank not in sending and receive.rank not in receiving
            if i not in done and before[i] <= done and free:
                steps[i] = step
                sending.add(send.rank)
                receiving.add(receive.rank)
        step += 1
    return steps


def _move(send: Event, receive: Event) -> Move:
    # A reducing rank receives into scratch memory, so the sender's place counts; elsewhere messages land in place.
    # A scattered block is pictured where it lay on the root.
    from_sender = _reduces(send) or send.detail["operation"].startswith("scatter")
    offset = (send if from_sender else receive).detail["offset"]
    return Move(send.rank, receive.rank, offset, tuple(send.detail["values"]), send.bytes)


def _reduces(event: Event) -> bool:
    return "reduce" in event.detail["operation"]


def _disjoint(a: float, b: float) -> bool:
    """Whether no power of ten is in both: 1001 and 110 are, 1001 and 1100 are not."""
    x, y = round(a), round(b)
    while x and y:
        if x % 10 and y % 10:
            return False
        x, y = x // 10, y // 10
    return True
