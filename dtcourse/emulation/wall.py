"""The same costs, slept: for programs in which what arrives first decides (parameter servers, work stealing, failures).

An operation really computes, and the rank sleeps for what is left of its cost; a message is held back until it would
have arrived. What the real machine adds to that (it computes more slowly than what it emulates, it has other work, it
wakes up late) is in all times that are read from this clock. The overrun says how much it is:

    overrun = 1 - (emulated compute + emulated waiting) / time

Where it is too much, everything is emulated slower by one factor, which leaves the machine more room: launch does that.
Times are in emulated seconds: those of the machine's monotonic clock over the factor. All ranks are on one machine, so
they agree on them.
"""

from __future__ import annotations

import time

from dtcourse.emulation.clock import Account, Lanes
from dtcourse.emulation.network import EmulatedNetwork, Ports

TICK = 1e-3  # real seconds: shorter sleeps are put off and summed up, since the system cannot sleep so exactly


class WallClock(Lanes):
    """The machine's clock, slowed down by `slowdown`, with operations and messages that take what they are said to."""

    arrival_decides = True

    def __init__(
        self, rank: int = 0, network: EmulatedNetwork | None = None, slowdown: float = 1.0
    ) -> None:
        super().__init__()
        self.slowdown = slowdown
        self._ports = None if network is None else Ports(network, rank)
        self._began = self.main.time = self._read()

    def _read(self) -> float:
        return time.monotonic() / self.slowdown

    def now(self) -> float:
        """The time, once this lane has slept off what its operations owe."""
        self._sleep_until(self.lane().time)
        return self._read()

    def compute(self, seconds: float) -> None:
        lane = self.lane()
        lane.time += seconds
        lane.computed += seconds
        if (lane.time - self._read()) * self.slowdown > TICK:
            self._sleep_until(lane.time)

    def sleep(self, seconds: float) -> None:
        lane = self.lane()
        lane.slept += seconds
        lane.time = self.now() + seconds
        self._sleep_until(lane.time)

    def wait_until(self, moment: float, since: float = 0.0) -> None:
        lane = self.lane()
        began = max(lane.time, since)  # what the machine was late by before is no waiting
        lane.waited += max(0.0, moment - began)
        lane.time = max(began, moment)
        self._sleep_until(lane.time)

    def ports(self) -> Ports | None:
        """Those of the process: on a real clock its groups share them as a real machine's do."""
        return self._ports

    def account(self) -> Account:
        return Account.of(self.main, self.now() - self._began)

    def _sleep_until(self, moment: float) -> None:
        while (rest := moment - self._read()) > 0:
            time.sleep(rest * self.slowdown)
