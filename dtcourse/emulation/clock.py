"""The virtual clock: every rank carries its own time, and nobody sleeps.

An operation really computes, and adds its cost to the time of the lane that it runs on. A message carries the time at
which it left; whoever waits for it moves on to the time at which it arrives, if that is later. So times are sums and
maxima of what was put in, the same to the last digit on every machine, however busy (as in SimGrid's SMPI, Degomme et
al. 2017). This holds as long as no rank decides by what arrives first: such programs want wall.py.

    lane    what a rank does one after the other. The function that launch calls is on the main lane; each group has one
            more, for its collectives, as a GPU has a stream for them. A collective starts at max(its lane's time, the
            time of the one who called it), and wait() moves the waiter to its end: what lies between is overlap.
            Threads of the user's own share the main lane, and so does backward, which runs on the thread that called
            it.
    ports   each lane has its own (network.py, shared_ports)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from dtcourse import events
from dtcourse.emulation.network import EmulatedNetwork, Ports


class Lane:
    """What a rank does one after the other, and where in time it is.

    time:     seconds on the emulated clock
    computed, waited, slept: seconds of it spent on operations, on waiting for messages, and in emulation.sleep
    flops, moved: FLOPs of those operations, and bytes that they moved
    recomputed: seconds of `computed` in forwards that are repeated for their backward
    ports:    what its messages leave and arrive by; None where no network is emulated
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.time = self.computed = self.waited = self.slept = 0.0
        self.flops = self.moved = self.recomputed = 0.0
        self.ports: Ports | None = None


@dataclass(frozen=True)
class Account:
    """Where the main lane's time went, in emulated seconds.

    total:   from the function's start until now; on the virtual clock exactly computed + waited + slept
    overrun: the part of `total` that the real machine added to what is emulated: 0 on the virtual clock
    flops, moved: what was computed, and bytes to and from memory for it: two ranks with the same in other times have
             unequal devices, and with other ones they have unequal work
    recomputed: seconds of `computed` in forwards that were repeated for their backward
    """

    total: float
    computed: float
    waited: float
    slept: float
    flops: float = field(default=0.0, repr=False)
    moved: float = field(default=0.0, repr=False)
    recomputed: float = field(default=0.0, repr=False)

    @property
    def overrun(self) -> float:
        """1 - (emulated compute + emulated waiting) / total."""
        rest = self.total - self.computed - self.waited - self.slept
        return max(0.0, rest / self.total) if self.total else 0.0

    @classmethod
    def of(cls, lane: Lane, total: float) -> Account:
        """Of a rank's main lane."""
        return cls(
            total, lane.computed, lane.waited, lane.slept, lane.flops, lane.moved, lane.recomputed
        )


class Clock(Protocol):
    """What the rest of the course asks of an emulated clock."""

    arrival_decides: bool  # whether what really arrives first may decide anything
    slowdown: float  # real seconds that it sleeps for an emulated one

    def now(self) -> float:
        """The time of the lane that asks."""

    def lane(self) -> Lane:
        """The lane of the calling thread."""

    def on(self, lane: Lane, since: float) -> Any:
        """A context in which the calling thread is on `lane`, from `since` on if the lane is not later already."""

    def compute(self, seconds: float) -> None:
        """An operation took so long."""

    def sleep(self, seconds: float) -> None:
        """Nothing happens on this lane for so long."""

    def wait_until(self, moment: float, since: float = 0.0) -> None:
        """What this lane waits for, since then, is there at `moment`."""

    def ports(self) -> Ports | None:
        """The ports that a message of this lane leaves by."""

    def account(self) -> Account:
        """Where the main lane's time went."""


class Lanes:
    """Which lane each thread of a rank is on; the main one, where nobody has said otherwise."""

    def __init__(self) -> None:
        self.main = Lane("main")
        self._here = threading.local()

    def lane(self) -> Lane:
        return getattr(self._here, "lane", self.main)

    @contextmanager
    def on(self, lane: Lane, since: float) -> Iterator[None]:
        before = self.lane()
        lane.time = max(lane.time, since)
        self._here.lane = lane
        try:
            yield
        finally:
            self._here.lane = before


class VirtualClock(Lanes):
    """A rank's own time. `rank` and `network` are for the ports; see the module's docstring."""

    arrival_decides = False
    slowdown = 1.0  # it never sleeps

    def __init__(self, rank: int = 0, network: EmulatedNetwork | None = None) -> None:
        super().__init__()
        self._rank, self._network = rank, network
        self._shared = (
            Ports(network, rank) if network is not None and network.shared_ports else None
        )

    def now(self) -> float:
        return self.lane().time

    def compute(self, seconds: float) -> None:
        lane = self.lane()
        lane.time += seconds
        lane.computed += seconds

    def sleep(self, seconds: float) -> None:
        lane = self.lane()
        lane.time += seconds
        lane.slept += seconds

    def wait_until(self, moment: float, since: float = 0.0) -> None:
        lane = self.lane()
        lane.waited += max(0.0, moment - lane.time)
        lane.time = max(lane.time, moment)

    def ports(self) -> Ports | None:
        if self._network is None or self._shared is not None:
            return self._shared
        lane = self.lane()
        if lane.ports is None:
            lane.ports = Ports(self._network, self._rank)
        return lane.ports

    def account(self) -> Account:
        return Account.of(self.main, self.main.time)


# --- this process's clock ---------------------------------------------------------------------------------------

_clock: Clock | None = None
_counter: Callable[[], AbstractContextManager[Any]] | None = None


def install(
    clock: Clock | None, counter: Callable[[], AbstractContextManager[Any]] | None = None
) -> None:
    """Makes this the clock of the process, for events too; None brings the machine's own back.

    counter: makes the context in which operations of the thread that enters it take time on its lane
    """
    global _clock, _counter
    _clock, _counter = clock, counter
    events.use_clock(time.monotonic if clock is None else clock.now)


def installed() -> Clock | None:
    """The emulated clock of this process, or None."""
    return _clock


def on(lane: Lane, since: float) -> Any:
    """A context: the calling thread is on `lane`, from `since` on. Without an emulated clock it changes nothing."""
    return nullcontext() if _clock is None else _clock.on(lane, since)


def computing() -> AbstractContextManager[Any]:
    """A context: what the calling thread computes takes the device's time, on the lane that it is on.

    On the main lane it does so anyway. It is for a lane beside it that computes as well, as a second stream of a GPU
    does: what is decompressed while backward goes on. The two share no device here, so neither slows the other down.
    """
    return nullcontext() if _counter is None else _counter()


def wait_until(moment: float, since: float) -> None:
    """What this lane waits for, since then, is there at `moment`. Without an emulated clock, so it is now."""
    if _clock is not None:
        _clock.wait_until(moment, since)


def now() -> float:
    """Seconds on the emulated clock, from the start of the function on; without one, the machine's monotonic clock."""
    return events.now()


def sleep(seconds: float) -> None:
    """Does nothing for so long, in emulated seconds: `if rank == 3: emulation.sleep(0.1)` makes a straggler.

    Without an emulated clock it sleeps. Raises ValueError for a negative time.
    """
    if not seconds >= 0:
        raise ValueError(f"a rank sleeps 0 seconds or more; got {seconds!r}")
    if _clock is None:
        time.sleep(seconds)
    else:
        _clock.sleep(seconds)


def account() -> Account:
    """Where this rank's emulated time went so far. Raises ValueError where nothing is emulated."""
    if _clock is None:
        raise ValueError("nothing is emulated here: launch(..., devices=..., network=...)")
    return _clock.account()
