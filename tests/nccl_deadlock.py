"""Whether operations of ranks wait for one another in a circle: each rank says now and then what it has queued.

An operation at the head of its stream needs its other end. That end is

    at the head there, too          nothing is waited for: it travels
    behind others on its stream     it waits for the head of that stream
    not posted yet                  it waits for what the rank's program waits for, if that is in wait()

A circle of these is a deadlock once each rank in it has said the same again after all of them had said it: what an
operation waits for does not change until it is over.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch.distributed as dist

_EVERY = 0.2  # seconds between a rank's words

Way = tuple[str, int, int]  # batched or not, from, to
Key = tuple[str, int, int, int]  # and which of those


class State(NamedTuple):
    """What a rank says of itself.

    number:  how often it has said something; -1: its program is over
    streams: by stream and by what was posted at once, the operations that are not over: key and name
    waits:   of those, what the program waits for; none where it does not wait, or several threads do
    posted:  how many operations of each way it has posted
    """

    number: int
    streams: list[list[list[tuple[Key, str]]]]
    waits: list[Key]
    posted: dict[Way, int]


class Found(NamedTuple):
    """An operation in a circle; without a key a program that is over, where the chain ends."""

    rank: int
    key: Key | None
    name: str


class Watch:
    """One rank's part in it: what it has queued, what its program waits for, and what the others say of theirs."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.streams: list[Any] = []
        self.waits: list[Any] = []
        self.posted: Counter[Way] = Counter()
        self.said = 0
        self.seen: list[Found] = []
        self.since: dict[int, int] = {}
        self._lock = threading.RLock()
        self._left = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def changing(self) -> threading.RLock:
        """To be held round every change of the queues."""
        return self._lock

    def add(self, stream: Sequence[Any]) -> None:
        """A stream's queue; each entry has `operations`."""
        with self._lock:
            self.streams.append(stream)

    def numbered(self, way: Way) -> Key:
        """The next operation's key."""
        with self._lock:
            self.posted[way] += 1
            return (*way, self.posted[way] - 1)

    @contextmanager
    def waiting_for(self, posted: Any) -> Iterator[None]:
        """While the program waits for what is posted."""
        with self._lock:
            self.waits.append(posted)
        try:
            yield
        finally:
            with self._lock:
                self.waits.remove(posted)

    def leave(self) -> None:
        """The rank's program is over."""
        self._left.set()
        with suppress(RuntimeError):  # the store may be gone before
            self.store.set(str(self.rank), pickle.dumps(self._state()._replace(number=-1)))

    def in_words(self) -> str:
        """What this rank has queued."""
        queues = [
            " before ".join(name for one in stream for _, name in one)
            for stream in self._state().streams
        ]
        return f"rank {self.rank} has queued {'; '.join(filter(None, queues)) or 'nothing'}"

    def _state(self) -> State:
        with self._lock:
            self.said += 1
            streams = [
                [[(o.key, str(o)) for o in one.operations if not o.done] for one in stream]
                for stream in self.streams
            ]
            waits = (
                [o.key for o in self.waits[0].operations if not o.done]
                if len(self.waits) == 1
                else []
            )
            return State(self.said, streams, waits, dict(self.posted))

    def _look(self) -> None:
        while not self._left.wait(_EVERY):
            if any(self.streams):
                with suppress(RuntimeError):  # the store is gone
                    self._say_and_read()

    def _say_and_read(self) -> None:
        self.store.set(str(self.rank), pickle.dumps(self._state()))
        states = {
            rank: pickle.loads(self.store.get(str(rank)))
            for rank in range(self.size)
            if self.store.check([str(rank)])
        }
        circle = find_circle(self.rank, states)
        numbers = {one.rank: states[one.rank].number for one in circle}
        if circle != self.seen:
            self.seen, self.since = circle, numbers
        elif circle and all(n < 0 or n > self.since[rank] + 1 for rank, n in numbers.items()):
            self._fail(circle)

    def _fail(self, circle: list[Found]) -> None:
        if circle[-1].key is not None:
            circle = [*circle, circle[0]]
        words = ", which waits for ".join(f"rank {one.rank}'s {one.name}" for one in circle)
        with self._lock:
            for posted in (posted for stream in self.streams for posted in stream):
                posted.error = RuntimeError(f"deadlock by NCCL's order rule: {words}")
                posted.over.set()


def find_circle(me: int, states: dict[int, State]) -> list[Found]:
    """Operations each of which waits for the next, and the last one for the first, which is of `me`; or the last one
    for a program that is over. Empty where there is none.
    """
    for stream in states[me].streams:
        for key, name in stream[0] if stream else ():
            path = [Found(me, key, name)]
            while (after := _waits_for(path[-1], states)) is not None and after not in path:
                path.append(after)
                if after.key is None:
                    return path
            if after == path[0]:
                return path
    return []


def _waits_for(found: Found, states: dict[int, State]) -> Found | None:
    """The head of a stream that an operation, itself at a head, waits for; None where it waits for none."""
    assert found.key is not None
    *way, number = found.key
    other = way[2] if found.rank == way[1] else way[1]
    state = states.get(other)
    if state is None:
        return None
    needed = [found.key]
    if number >= state.posted.get(tuple(way), 0):
        if state.number < 0:
            return Found(other, None, "program, which is over")
        needed = state.waits
    for stream in state.streams:
        for place, posted in enumerate(stream):
            if (
                any(key in needed for key, _ in posted)
                and stream[0]
                and (place or needed is state.waits)
            ):
                return Found(other, *stream[0][0])
    return None
