"""Links made slow in software, so that a laptop feels what a cluster's network does to training.

The model is LogGP's (Alexandrov et al. 1995), without its overhead of the processor. Each rank has one full-duplex port
for its own node and one for the other nodes (as an accelerator has NVLink and a network card). A port sends one message
at a time and receives one at a time, and is busy with each for

    gap + bytes / bandwidth

seconds: `gap` is what a message costs however short it is. It departs when its lane has come to it and the sending port
is free; its head arrives `latency` later, and it occupies the receiving port from then on, or from when that is free.
On an idle link a message so takes latency + gap + bytes / bandwidth. A sender may reuse its tensor when the message has
left its port. Nothing inside the fabric is shared: its bisection is full.

Which port is free when is asked of a clock (clock.py, wall.py): on the virtual one, a lane's messages take its ports in
the order of its program, wherever in the time there is room for them.
"""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

# Steps of a ring, in units of p - 1, for the collectives that go round one.
_RING = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


@dataclass(frozen=True)
class EmulatedNetwork:
    """Links between ranks: `launch(fn, 4, network=EmulatedNetwork(latency=1e-3, bandwidth=100e6))`.

    latency:   seconds that a message's head travels
    bandwidth: bytes per second of each port, each way
    node_size: ranks per node; ranks 0 to node_size - 1 are the first node. None: all ranks on one flat network
    between:   the links between nodes, where they differ from the ones inside: (latency, bandwidth), or another
               EmulatedNetwork. Needs node_size.
    gap:       seconds for which a port is busy with a message besides its bytes (LogGP's g)
    cables:    links of single pairs of ranks, where they differ: {(0, 1): EmulatedNetwork(...)} is the way from rank 0
               to rank 1 only. A port is still one: a message over a slow cable keeps it busy for as long as that takes.
    shared_ports: on the virtual clock, collectives of different groups have ports of their own (else it would depend on
               the machine which of two that are in flight at once goes first). True shares them: nearer to a cluster,
               and no longer the same time twice.

    Raises ValueError for anything that is no network.
    """

    latency: float = 0.0
    bandwidth: float = math.inf
    node_size: int | None = None
    between: EmulatedNetwork | tuple[float, float] | None = None
    gap: float = 0.0
    shared_ports: bool = False
    cables: (
        Mapping[tuple[int, int], EmulatedNetwork]
        | tuple[tuple[tuple[int, int], EmulatedNetwork], ...]
    ) = ()

    def __post_init__(self) -> None:
        if not (_is_number(self.latency) and 0 <= self.latency < math.inf):
            raise ValueError(f"latency is in seconds, 0 or more; got {self.latency!r}")
        if not (_is_number(self.bandwidth) and self.bandwidth > 0):
            raise ValueError(f"bandwidth is in bytes per second, above 0; got {self.bandwidth!r}")
        if not (_is_number(self.gap) and 0 <= self.gap < math.inf):
            raise ValueError(f"gap is in seconds per message, 0 or more; got {self.gap!r}")
        if self.node_size is not None and not (
            isinstance(self.node_size, int) and self.node_size >= 1
        ):
            raise ValueError(f"node_size is a number of ranks, 1 or more; got {self.node_size!r}")
        self._check_cables()
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

    def _check_cables(self) -> None:
        """Keeps them as pairs, which can be hashed and pickled."""
        cables: dict[Any, Any] = dict(self.cables)
        for pair, link in cables.items():
            ranks = isinstance(pair, tuple) and len(pair) == 2 and pair[0] != pair[1]
            if not (ranks and all(isinstance(rank, int) and rank >= 0 for rank in pair)):
                raise ValueError(f"a cable goes from one rank to another one; got {pair!r}")
            alone = isinstance(link, EmulatedNetwork) and link.node_size is None and not link.cables
            if not alone:
                raise ValueError(
                    f"the cable {pair!r} is an EmulatedNetwork without nodes and cables of its own; got {link!r}"
                )
        object.__setattr__(self, "cables", tuple(sorted(cables.items(), key=lambda item: item[0])))
        object.__setattr__(self, "_cables", cables)

    def as_data(self) -> dict[str, Any]:
        """Numbers, lists and None alone: what may travel where no object may. `from_data` makes the network again."""
        data: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        data["between"] = (
            self.between.as_data() if isinstance(self.between, EmulatedNetwork) else None
        )
        links: dict[tuple[int, int], EmulatedNetwork] = self.__dict__["_cables"]
        data["cables"] = [[*pair, link.as_data()] for pair, link in links.items()]
        return data

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> EmulatedNetwork:
        """The network whose `as_data` this is."""
        between = data["between"] and cls.from_data(data["between"])
        cables = {(src, dst): cls.from_data(link) for src, dst, link in data["cables"]}
        return cls(**{**data, "between": between, "cables": cables})

    def crosses(self, src: int, dst: int) -> bool:
        """Whether a message from rank `src` to rank `dst` leaves its node."""
        return self.node_size is not None and src // self.node_size != dst // self.node_size

    def link(self, src: int, dst: int) -> EmulatedNetwork:
        """The link that carries a message from rank `src` to rank `dst` (ranks of the default group)."""
        cables: dict[tuple[int, int], EmulatedNetwork] = self.__dict__["_cables"]
        if (src, dst) in cables:
            return cables[src, dst]
        if self.between is not None and self.crosses(src, dst):
            assert isinstance(self.between, EmulatedNetwork)
            return self.between
        return self

    def busy(self, nbytes: int) -> float:
        """Seconds for which one message keeps a port of this link busy."""
        return self.gap + nbytes / self.bandwidth

    def seconds(self, nbytes: int, src: int = 0, dst: int = 1) -> float:
        """Time of one message on an idle link."""
        link = self.link(src, dst)
        return link.latency + link.busy(nbytes)

    def collective_seconds(self, operation: str, nbytes: int, ranks: Sequence[int]) -> float:
        """Time of one of torch's own collectives over `ranks`, from the last rank's call on.

        A flat algorithm over the slowest link: a ring of p - 1 steps (twice for all_reduce) with 1/p of the bytes in
        each, or a binomial tree of log2 p steps for what has a root. A barrier is an all_reduce of nothing.
        """
        size = len(ranks)
        if size < 2:
            return 0.0
        links = [self.link(ranks[i], ranks[(i + 1) % size]) for i in range(size)]
        message = max(link.latency + link.gap for link in links)
        bandwidth = min(link.bandwidth for link in links)
        name = operation.removesuffix("_coalesced")
        if name == "barrier":
            return 2 * (size - 1) * message
        if name in _RING:
            steps = _RING[name] * (size - 1)
            return steps * (message + nbytes / size / bandwidth)
        steps = math.ceil(math.log2(size))
        if name in ("gather", "scatter"):  # each step of the tree halves what is still under way
            return steps * message + nbytes * (size - 1) / size / bandwidth
        return steps * (message + nbytes / bandwidth)  # broadcast, reduce


class Port:
    """One direction of a port: when it is busy. A message takes the first time at which there is room for it."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []

    def occupy(self, earliest: float, seconds: float) -> float:
        """Takes the port for `seconds`, at `earliest` or when it is next free for so long; returns the start."""
        place = bisect.bisect_right(self._ends, earliest)
        start = earliest
        while place < len(self._starts) and self._starts[place] < start + seconds:
            start = max(start, self._ends[place])
            place += 1
        if not seconds:
            return start
        # it follows on at once: one busy time, not two
        if place > 0 and self._ends[place - 1] == start:
            self._ends[place - 1] = start + seconds
        else:
            self._starts.insert(place, start)
            self._ends.insert(place, start + seconds)
        return start


class Ports:
    """The ports of one rank: inside its node and between nodes, to send and to receive.

    Times are in seconds on the clock of whoever asks. Safe to use from several threads.
    """

    def __init__(self, network: EmulatedNetwork, rank: int) -> None:
        self.network = network
        self.rank = rank
        self._lock = threading.Lock()
        self._sending = Port(), Port()  # inside the node, between nodes
        self._receiving = Port(), Port()

    def send(self, nbytes: int, dst: int, now: float) -> tuple[float, float]:
        """Queues a message, handed over at `now`, at the sending port.

        Returns when it has left, and when its head arrives at rank `dst`.
        """
        link = self.network.link(self.rank, dst)
        port = self._sending[self.network.crosses(self.rank, dst)]
        with self._lock:
            departs = port.occupy(now, link.busy(nbytes))
        return departs + link.busy(nbytes), departs + link.latency

    def receive(self, nbytes: int, src: int, head: float) -> float:
        """When this rank has all of a message whose head arrives at `head`, or later where its port was busy."""
        link = self.network.link(src, self.rank)
        port = self._receiving[self.network.crosses(src, self.rank)]
        with self._lock:
            return port.occupy(head, link.busy(nbytes)) + link.busy(nbytes)

    def occupy(self, start: float, seconds: float, crosses: bool) -> float:
        """Keeps a sending port busy with one of torch's own collectives; returns when it has ended."""
        with self._lock:
            return self._sending[crosses].occupy(start, seconds) + seconds


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
