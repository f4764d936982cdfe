"""An algorithm's messages on any graph of links: how long its rounds take where messages share a link.

A round is what is under way at once; the next one begins when its last message has come. Each takes as long as its
busiest link (`nodes.seconds`). So the same bytes take longer where many of them have to pass one link at a time: a
ring's neighbours stay below one switch, the far partners of halving and doubling all cross the middle.

    ring               2 (p - 1) rounds of n / p to the next host, in the order of the hosts
    tree               log2 p rounds up, log2 p down, each with n: partners 1, 2, 4, ... apart
    halving_doubling   n / 2 to the host p / 2 away, n / 4 to that p / 4 away, ..., and back
    direct             all-to-all: every message at once

Bytes are counted as in collective_cost.py. Latencies are not in it. A flow takes all equal ways, in equal parts, where
a switch's hash may put two on one. Papers: see collectives/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dtcourse.simulator import nodes
from dtcourse.simulator.nodes import Flow
from dtcourse.simulator.topology import Topology

# How often this round comes, one after the other; and its messages.
Round = tuple[int, list[Flow]]


def _ring(collective: str, hosts: Sequence[str], n: float) -> Iterator[Round]:
    p = len(hosts)
    times = (2 if collective == "all_reduce" else 1) * (p - 1)
    yield times, [(hosts[i], hosts[(i + 1) % p], n / p) for i in range(p)]


def _tree(collective: str, hosts: Sequence[str], n: float) -> Iterator[Round]:
    p, apart = len(hosts), 1
    while apart < p:
        up = [(i + apart, i) for i in range(0, p - apart, 2 * apart)]
        if collective == "all_reduce":
            yield 1, [(hosts[i], hosts[j], n) for i, j in up]
        yield 1, [(hosts[j], hosts[i], n) for i, j in up]
        apart *= 2


def _halving_doubling(collective: str, hosts: Sequence[str], n: float) -> Iterator[Round]:
    p, apart = len(hosts), len(hosts) // 2
    if p & (p - 1):
        raise ValueError(f"halving and doubling is for a power of two of hosts here; got {p}")
    times = 2 if collective == "all_reduce" else 1
    while apart:
        share = n * apart / p
        yield times, [(hosts[i], hosts[i ^ apart], share) for i in range(p)]
        apart //= 2


def _direct(collective: str, hosts: Sequence[str], n: float) -> Iterator[Round]:
    p = len(hosts)
    yield 1, nodes.all_to_all_flows(hosts, n * (p - 1) / p)


ROUNDS: dict[str, dict[str, Callable[[str, Sequence[str], float], Iterator[Round]]]] = {
    "all_reduce": {"ring": _ring, "tree": _tree, "halving_doubling": _halving_doubling},
    "reduce_scatter": {"ring": _ring, "halving_doubling": _halving_doubling},
    "all_gather": {"ring": _ring, "halving_doubling": _halving_doubling},
    "broadcast": {"tree": _tree},
    "all_to_all": {"direct": _direct},
}


def rounds(
    topology: Topology, algorithm: str, collective: str, nbytes: float
) -> list[tuple[int, list[Flow]]]:
    """(how often, messages) of each round among the topology's hosts, in their order.

    collective, nbytes: as in collective_cost.py

    Raises ValueError for a collective or an algorithm that is not here, and halving_doubling without a power of two.
    """
    if collective not in ROUNDS:
        raise ValueError(f"on a graph there are {', '.join(ROUNDS)}; got {collective!r}")
    known = ROUNDS[collective]
    if algorithm not in known:
        raise ValueError(f"{collective} on a graph is by {' or '.join(known)}; got {algorithm!r}")
    if not nbytes >= 0:
        raise ValueError(f"bytes are 0 or more; got {nbytes}")
    if len(topology.hosts) == 1:
        return []
    return list(known[algorithm](collective, topology.hosts, nbytes))


def seconds(topology: Topology, algorithm: str, collective: str, nbytes: float) -> float:
    """The least time of all rounds, one after the other."""
    return sum(
        times * nodes.seconds(topology, flows)
        for times, flows in rounds(topology, algorithm, collective, nbytes)
    )


def busiest_link(
    topology: Topology, algorithm: str, collective: str, nbytes: float
) -> tuple[str, str]:
    """The link and direction that is busy longest, over all rounds."""
    busy: dict[tuple[str, str], float] = {}
    for times, flows in rounds(topology, algorithm, collective, nbytes):
        for link, taken in nodes.link_seconds(topology, flows).items():
            busy[link] = busy.get(link, 0.0) + times * taken
    return max(busy, key=busy.__getitem__, default=("", ""))
