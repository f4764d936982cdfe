"""Links made slow in software, so that a laptop feels what a cluster's network does to training.

A message moves at once over the real connection, with a note of when it would have arrived; the receiver holds back
its completion until that moment. Nobody computes less meanwhile, no root rights are needed, and what is measured is
the emulated link alone: the real transfer, and a receiver that was late itself, are hidden inside it.

The model: each rank has one full-duplex port for its own node and one for the other nodes (as an accelerator has
NVLink and a network card). A port sends one message at a time and receives one at a time, at the link's bandwidth;
the last byte arrives `latency` after it left. So

    arrival = max(now, port free) + bytes / bandwidth + latency

two messages that leave one rank queue at its port, and so do two that arrive at one rank at the same moment.
A sender may reuse its tensor when the message has left its port. Nothing inside the fabric is shared: its
bisection is full.

All ranks must run on one machine: they compare times on its monotonic clock.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

# What a collective of gloo or NCCL would take on these links: (steps, bytes sent) per rank for p ranks and a size of
# n bytes (see traffic.algorithmic_bytes for what n is). Flat algorithms, as gloo runs them: rings, and trees of depth
# log2 p for what has a root.
_RING = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


@dataclass(frozen=True)
class EmulatedNetwork:
    """Links between ranks: `launch(fn, 4, network=EmulatedNetwork(latency=1e-3, bandwidth=100e6))`.

    latency:   seconds that the last byte travels
    bandwidth: bytes per second of each port, each way
    node_size: ranks per node; ranks 0 to node_size - 1 are the first node. None: all ranks on one flat network
    between:   the links between nodes, where they differ from the ones inside: (latency, bandwidth), or another
               EmulatedNetwork. Needs node_size.

    Raises ValueError for anything that is no network.
    """

    latency: float = 0.0
    bandwidth: float = math.inf
    node_size: int | None = None
    between: EmulatedNetwork | tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not (_is_number(self.latency) and 0 <= self.latency < math.inf):
            raise ValueError(f"latency is in seconds, 0 or more; got {self.latency!r}")
        if not (_is_number(self.bandwidth) and self.bandwidth > 0):
            raise ValueError(f"bandwidth is in bytes per second, above 0; got {self.bandwidth!r}")
        if self.node_size is not None and not (
            isinstance(self.node_size, int) and self.node_size >= 1
        ):
            raise ValueError(f"node_size is a number of ranks, 1 or more; got {self.node_size!r}")
        if self.between is None:
            return
        if self.node_size is None:
            raise ValueError("between= describes the links between nodes: give node_size= as well")
        if not isinstance(self.between, EmulatedNetwork):
            try:
                latency, bandwidth = self.between
            except (TypeError, ValueError):
                raise ValueError(
                    "between= is (latency in seconds, bandwidth in bytes per second) or an "
                    f"EmulatedNetwork; got {self.between!r}"
                ) from None
            object.__setattr__(self, "between", EmulatedNetwork(latency, bandwidth))
        elif self.between.node_size is not None:
            raise ValueError(
                "the network between nodes has no nodes of its own: leave out its node_size"
            )

    def crosses(self, src: int, dst: int) -> bool:
        """Whether a message from rank `src` to rank `dst` leaves its node."""
        return self.node_size is not None and src // self.node_size != dst // self.node_size

    def link(self, src: int, dst: int) -> EmulatedNetwork:
        """The link that carries a message from rank `src` to rank `dst` (ranks of the default group)."""
        if self.between is not None and self.crosses(src, dst):
            assert isinstance(self.between, EmulatedNetwork)
            return self.between
        return self

    def seconds(self, nbytes: int, src: int = 0, dst: int = 1) -> float:
        """Time of one message on an idle link."""
        link = self.link(src, dst)
        return link.latency + nbytes / link.bandwidth

    def collective_seconds(self, operation: str, nbytes: int, ranks: Sequence[int]) -> float:
        """Time of one of torch's own collectives over `ranks`, from the last rank's call on.

        A flat algorithm over the slowest link: a ring of p - 1 steps (twice for all_reduce) with 1/p of the bytes in
        each, or a binomial tree of log2 p steps for what has a root. A barrier is an all_reduce of nothing.
        """
        size = len(ranks)
        if size < 2:
            return 0.0
        ring = [(ranks[i], ranks[(i + 1) % size]) for i in range(size)]
        latency = max(self.link(a, b).latency for a, b in ring)
        bandwidth = min(self.link(a, b).bandwidth for a, b in ring)
        name = operation.removesuffix("_coalesced")
        if name == "barrier":
            return 2 * (size - 1) * latency
        if name in _RING:
            steps = _RING[name] * (size - 1)
            return steps * (latency + nbytes / size / bandwidth)
        steps = math.ceil(math.log2(size))
        if name in ("gather", "scatter"):  # each step of the tree halves what is still under way
            return steps * latency + nbytes * (size - 1) / size / bandwidth
        return steps * (latency + nbytes / bandwidth)  # broadcast, reduce


class Ports:
    """The ports of this rank: when each is free again, on the machine's monotonic clock."""

    def __init__(self, network: EmulatedNetwork, rank: int) -> None:
        self.network = network
        self.rank = rank
        self._lock = threading.Lock()
        self._sending = [0.0, 0.0]  # inside the node, between nodes
        self._receiving = [0.0, 0.0]

    def send(self, nbytes: int, dst: int, now: float | None = None) -> tuple[float, float]:
        """Queues a message at the sending port. Returns when it has left, and when its last byte arrives.

        now: when it was handed over, if not at this moment
        """
        link = self.network.link(self.rank, dst)
        port = self.network.crosses(self.rank, dst)
        with self._lock:
            handed = time.monotonic() if now is None else now
            left = max(handed, self._sending[port]) + nbytes / link.bandwidth
            self._sending[port] = left
        return left, left + link.latency

    def receive(self, nbytes: int, src: int, arrival: float) -> float:
        """When this rank has the message: `arrival`, or later where its port was busy with another one."""
        link = self.network.link(src, self.rank)
        port = self.network.crosses(src, self.rank)
        transfer = nbytes / link.bandwidth
        with self._lock:
            done = max(arrival - transfer, self._receiving[port]) + transfer
            self._receiving[port] = done
        return done

    def occupy(self, start: float, seconds: float, crosses: bool) -> float:
        """Keeps the ports busy with one of torch's own collectives; returns when it has ended."""
        with self._lock:
            end = max(start, self._sending[crosses]) + seconds
            self._sending[crosses] = end
        return end


def sleep_until(moment: float) -> None:
    """Sleeps up to a moment of the monotonic clock, if it is still to come."""
    while (rest := moment - time.monotonic()) > 0:
        time.sleep(rest)


def percentiles(
    seconds: Sequence[float], at: Sequence[float] = (5, 50, 95, 99)
) -> dict[float, float]:
    """Percentiles of measured times, by linear interpolation: {5: ..., 50: the median, 95: ..., 99: ...}."""
    if not seconds:
        raise ValueError("no times to take percentiles of")
    ordered = sorted(seconds)
    result = {}
    for percent in at:
        if not 0 <= percent <= 100:
            raise ValueError(f"a percentile lies between 0 and 100; got {percent}")
        place = (len(ordered) - 1) * percent / 100
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        result[percent] = ordered[low] + (ordered[high] - ordered[low]) * (place - low)
    return result


# The ports belong to the process, not to a group: messages of all its groups leave by the same ones.
_ports: Ports | None = None


def install(network: EmulatedNetwork | None, rank: int) -> None:
    """Makes all links of this process slow, or (None) real again. Every rank must do the same."""
    global _ports
    _ports = None if network is None else Ports(network, rank)


def ports() -> Ports | None:
    """This process's ports, where its links are emulated."""
    return _ports


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
