"""An emulated cluster, as launch gives it to its ranks: devices, network, and the clock that shows what they cost."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dtcourse.emulation import clock as clocks
from dtcourse.emulation.clock import Clock, VirtualClock
from dtcourse.emulation.device import EmulatedDevice
from dtcourse.emulation.network import EmulatedNetwork
from dtcourse.emulation.wall import WallClock

CLOCKS = ("virtual", "wall")
OVERRUN = 0.03  # the part of a time on the wall clock that may be the real machine's
REPEATS = 3
MOST_NOISE = 0.25  # an overrun that another machine's load alone may explain


@dataclass(frozen=True)
class EmulatedCluster:
    """Devices and links. None: operations, or messages, take no time on the virtual clock,
    their real one on the wall's.

    What takes no time is still waited for: a message carries the time at which it was sent.

    devices:  one for all ranks, or one per rank
    clock:    "virtual" or "wall" (see clock.py and wall.py)
    slowdown: the wall clock's factor

    Raises ValueError for what is no device, network or clock.
    """

    devices: EmulatedDevice | Sequence[EmulatedDevice] | None = None
    network: EmulatedNetwork | None = None
    clock: str = "virtual"
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        if self.clock not in CLOCKS:
            raise ValueError(f'clock is "virtual" or "wall"; got {self.clock!r}')
        if self.network is not None and not isinstance(self.network, EmulatedNetwork):
            raise ValueError(
                f"network= is a dtcourse.emulation.EmulatedNetwork; got {self.network!r}"
            )
        if self.network is None:  # a message then says when it was sent, no more
            object.__setattr__(self, "network", EmulatedNetwork())
        if self.devices is None or isinstance(self.devices, EmulatedDevice):
            return
        several = isinstance(self.devices, Sequence) and not isinstance(self.devices, str)
        if not several or not all(isinstance(one, EmulatedDevice) for one in self.devices):
            raise ValueError(
                "devices= is a dtcourse.emulation.EmulatedDevice, or a list with one per rank; "
                f"got {self.devices!r}"
            )
        object.__setattr__(self, "devices", tuple(self.devices))

    def check(self, world_size: int) -> None:
        """Raises ValueError where there is not one device per rank."""
        if isinstance(self.devices, tuple) and len(self.devices) != world_size:
            raise ValueError(f"devices= has {len(self.devices)} devices for {world_size} ranks")

    @property
    def is_measured(self) -> bool:
        """Whether the real machine can spoil its times: operations are slept, not computed."""
        return self.clock == "wall" and self.devices is not None

    def slower(self, overrun: float) -> EmulatedCluster:
        """The same cluster, emulated so slowly that an overrun so large would become a small one."""
        wanted = OVERRUN / 2
        factor = overrun / (1 - overrun) * (1 - wanted) / wanted if overrun < 1 else 20.0
        return replace(self, slowdown=self.slowdown * math.ceil(min(max(2.0, factor), 20.0)))

    def device(self, rank: int) -> EmulatedDevice | None:
        """The device of one rank."""
        return self.devices[rank] if isinstance(self.devices, tuple) else self.devices  # type: ignore[return-value]

    def start(self, rank: int) -> Clock:
        """Starts the clock of this process, at 0 on every rank if it is virtual."""
        device = self.device(rank)
        if device is not None:  # before the clock: torch's table of FLOPs takes a while
            import dtcourse.emulation.counting  # noqa: F401
        clock: Any
        if self.clock == "virtual":
            clock = VirtualClock(rank, self.network)
        else:
            clock = WallClock(rank, self.network, self.slowdown)
        clocks.install(clock, None if device is None else partial(_counted_on, device, clock))
        return clock

    @contextmanager
    def computing(self, rank: int) -> Iterator[None]:
        """Counts what is computed inside, on the clock that `start` has installed."""
        with clocks.computing():
            yield


def _counted_on(device: EmulatedDevice, clock: Clock) -> AbstractContextManager[Any]:
    from dtcourse.emulation.counting import CountOperations

    return CountOperations(device, clock, clock.lane())


def measured_again(
    run: Any, cluster: EmulatedCluster, run_once: Callable[[EmulatedCluster], Any]
) -> Any:
    """`run`, or one of the same on a cluster emulated so slowly that the real machine adds at most OVERRUN to it.

    run:      what run_once(cluster) returned; its .overrun is what the machine added
    run_once: runs everything again, on the cluster that it is given

    Warns where the machine is too busy for that, and where slower emulation did not help: what grows with the emulated
    times is not the machine's. Ranks that wait for each other by a store or a file are one case, since no message says
    for how long. A run in which a rank has failed is left as it is.
    """
    before = None
    for _ in range(REPEATS):
        if run.failures or run.overrun <= OVERRUN:
            return run
        # Emulated twice as slowly or more, what the machine adds is half as much beside it, or less.
        beside = run.overrun / (1 - run.overrun) if run.overrun < 1 else math.inf
        if before is not None and run.overrun > MOST_NOISE and beside >= before / 2:
            warnings.warn(
                f"{run.overrun:.0%} of the time is neither emulated work nor a message's, and slower emulation does "
                "not help, so it is not this machine's: do ranks wait for each other by a store, a file or "
                "monitored_barrier?",
                stacklevel=3,
            )
            return run
        before = beside
        cluster = cluster.slower(run.overrun)
        print(
            f"This machine added {run.overrun:.0%} to the emulated times: "
            f"once more, with everything emulated {cluster.slowdown:g} times slower.",
            file=sys.stderr,
        )
        run = run_once(cluster)
    if not run.failures and run.overrun > OVERRUN:
        warnings.warn(
            f"this machine added {run.overrun:.0%} to the emulated times, though everything was emulated "
            f"{cluster.slowdown:g} times slower: run it again when the machine has less other work",
            stacklevel=3,
        )
    return run
