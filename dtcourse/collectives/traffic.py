"""Counting what a rank sends: messages and bytes, by operation, phase of the step,
and peer (counted.py holds the sums).

Our own backends are counted message by message, a send when it leaves and a receive when it has come, so the figures
are exact. What gloo or NCCL does inside is not visible from here: for them the wrapper in `instrumented` counts the
*algorithmic* volume, the bytes that the textbook's best algorithm sends for the same call, and says so.

The phase is "backward" for whatever is called inside a backward pass (the buckets of DDP, the shards of FSDP, what
activation checkpointing recomputes), else "forward"; `with traffic.phase("optimizer"):` names another.

    run = launch(step, 4, backend="ring", record=True)
    print(run.traffic)                                        # a table
    run.traffic.bytes_sent(rank=0, operation="all_reduce")
    print(run.traffic.by_axis())                              # of the mesh whose groups were used

    with traffic.counting() as counted:                       # inside a rank
        ring.all_reduce(gradient)
    counted.messages_sent(), counted.bytes_sent()
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, ParamSpec, TypeVar

import torch.distributed as dist

from dtcourse import events, torch_private
from dtcourse.collectives.counted import RECEIVED, SENT, RankRecord, Row, Traffic

P = ParamSpec("P")
T = TypeVar("T")

# --- what a message belongs to ---------------------------------------------------------------------------------


class Label(NamedTuple):
    """The operation that a message is part of.

    salt: a number that both ends must agree on; our backends take it from the operation's signature, so that a
          message of one operation can never be received by another (see channel.py)
    """

    operation: str
    phase: str
    salt: int = 0


class Here(threading.local):
    """What the calling thread is doing.

    label:  the operation that its messages belong to
    phase:  of the step, where `phase` has named one
    inside: it runs a collective: those that it calls are parts of that one, and run where they are called
    quiet:  what it calls is part of a call that the flight recorder has
    """

    label: Label | None = None
    phase: str | None = None
    inside = quiet = False


here = Here()


def current_phase() -> str:
    """Tells "backward" inside a backward pass, "forward" outside, or what `phase` says."""
    return here.phase or ("backward" if torch_private.in_backward() else "forward")


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Names the phase for everything called inside, in this thread: `with traffic.phase("optimizer"): ...`."""
    before, here.phase = here.phase, name
    try:
        yield
    finally:
        here.phase = before


class operation:
    """Counts the messages sent inside under `name`; inside another operation it changes nothing.

    Also a decorator: `@operation("all_reduce")`.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        self._outer = here.label
        if self._outer is None:
            here.label = label = Label(self.name, current_phase())
            called(label)

    def __exit__(self, *_: object) -> None:
        here.label = self._outer

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def counted(*args: P.args, **kwargs: P.kwargs) -> T:
            with operation(self.name):
                return function(*args, **kwargs)

        return counted


# --- counting, inside a rank -----------------------------------------------------------------------------------


class Counter(Traffic):
    """A Traffic that grows while it is active. Safe to count into from several threads."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self._counts: dict[tuple[str, str, str, int | None, str], list[int]] = {}
        self._lock = threading.Lock()

    def message(
        self, label: Label, direction: str, peer: int | None, nbytes: int, axis: str = ""
    ) -> None:
        key = (label.operation, label.phase, direction, peer, axis)
        with self._lock:
            count = self._counts.setdefault(key, [0, 0])
            count[0] += 1
            count[1] += nbytes

    def call(self, label: Label) -> None:
        key = (self.rank, label.operation, label.phase)
        with self._lock:
            self.call_counts[key] = self.call_counts.get(key, 0) + 1

    @property
    def rows(self) -> list[Row]:
        """What was counted so far."""
        with self._lock:
            return [
                Row(self.rank, operation, phase, direction, peer, n, nbytes, axis)
                for (operation, phase, direction, peer, axis), (n, nbytes) in self._counts.items()
            ]

    def record(self) -> RankRecord:
        return RankRecord(self.rows, dict(self.call_counts), self.algorithmic)


_counters: tuple[Counter, ...] = ()
_whole_run: Counter | None = None
_guard = threading.Lock()


def active() -> tuple[Counter, ...]:
    """Those who count now; what costs time is done only where somebody does."""
    return _counters


def sent(label: Label, peer: int, nbytes: int, axis: str = "") -> None:
    """Counts a message that leaves this rank for `peer` (a rank of the default group), over an axis of a mesh."""
    for counter in _counters:
        counter.message(label, SENT, peer, nbytes, axis)


def received(
    label: Label, peer: int, nbytes: int, axis: str = "", by: tuple[Counter, ...] | None = None
) -> None:
    """Counts a message that has come from `peer`. by: those who count it; None: who counts now."""
    for counter in _counters if by is None else by:
        counter.message(label, RECEIVED, peer, nbytes, axis)


def called(label: Label) -> None:
    """Counts a call of a collective."""
    for counter in _counters:
        counter.call(label)


def algorithmic(label: Label, nbytes: int, axis: str = "") -> None:
    """Counts a call of gloo's or NCCL's own collective, by the bytes that the best algorithm sends."""
    for counter in _counters:
        counter.algorithmic = True
        counter.message(label, SENT, None, nbytes, axis)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


@contextmanager
def counting() -> Iterator[Counter]:
    """Counts what this rank sends and receives inside; wait for asynchronous work before it ends."""
    counter = Counter(_rank())
    _add(counter)
    try:
        yield counter
    finally:
        _remove(counter)


def start(rank: int | None = None) -> None:
    """Begins to count the whole run of this rank: launch(record=True) does, by way of `backend.form_group`."""
    global _whole_run
    if _whole_run is None:
        _whole_run = Counter(_rank() if rank is None else rank)
        _add(_whole_run)


def collect() -> RankRecord | None:
    """Ends what `start` began and returns what was counted, as plain data; None where nothing was started."""
    global _whole_run
    counter, _whole_run = _whole_run, None
    if counter is None:
        return None
    _remove(counter)
    return counter.record()


def _add(counter: Counter) -> None:
    global _counters
    with _guard:
        _counters = (*_counters, counter)
    events.changed()


def _remove(counter: Counter) -> None:
    global _counters
    with _guard:
        _counters = tuple(c for c in _counters if c is not counter)
    events.changed()


def algorithmic_bytes(operation: str, nbytes: int, size: int) -> int:
    """Bytes that a rank sends in a bandwidth-optimal algorithm, on average over the ranks.

    nbytes: the whole of it, as nccl-tests defines a collective's size: an all_reduce's or a broadcast's tensor, the
    gathered output, the input that is scattered, a rank's whole input of an all-to-all.

    Source: nccl-tests, PERFORMANCE.md: the bus bandwidth's factors, 2(p-1)/p for all_reduce, (p-1)/p for all-gather,
    reduce-scatter and all-to-all. Broadcast and reduce: each of p-1 ranks sends (or is sent) the tensor once, which
    is (p-1)/p of it a rank.
    """
    if operation in ("barrier", "recv", "irecv"):
        return 0
    if operation in ("send", "isend"):
        return nbytes
    factor = 2 if operation.startswith("all_reduce") else 1
    return round(factor * nbytes * (size - 1) / size)
