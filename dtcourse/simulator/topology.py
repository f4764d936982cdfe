"""Networks as graphs: how far apart two hosts are, and how much can cross the middle.

    hops            links on the shortest way between two hosts; each adds latency
    bisection       the least bandwidth between two halves of the hosts, over all ways to halve them: what an all-to-all
                    between the halves is limited by
    oversubscription what the hosts below a switch can send, over what its uplinks carry: 1 is "non-blocking"

The builders are those of data-centre practice: Al-Fares, Loukissas and Vahdat (2008) for the fat-tree of k-port
switches; Clos (1953) for leaf and spine.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import networkx


@dataclass(frozen=True)
class Topology:
    """graph: nodes have kind="host" or "switch"; edges have bandwidth in bytes a second, each way.

    oversubscription: None where hosts are joined to each other, and there is no switch that has hosts below it
    """

    name: str
    graph: networkx.Graph
    oversubscription: float | None = None

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts, in order."""
        return [n for n, kind in self.graph.nodes(data="kind") if kind == "host"]

    @property
    def switches(self) -> int:
        """How many switches it needs."""
        return self.graph.number_of_nodes() - len(self.hosts)

    @property
    def links(self) -> int:
        """How many cables it needs."""
        return self.graph.number_of_edges()

    def hops(self) -> tuple[int, float]:
        """The most, and the mean, number of links between two different hosts."""
        hosts = self.hosts
        lengths = [
            distances[b]
            for a, distances in networkx.all_pairs_shortest_path_length(self.graph)
            if a in set(hosts)
            for b in hosts
            if b != a
        ]
        return max(lengths), sum(lengths) / len(lengths)

    def bisection(self) -> float:
        """Bytes a second between the two halves of the hosts that are worst connected.

        Up to 12 hosts all halvings are tried. Beyond, only those of neighbours, along each axis of a grid: the worst
        for every topology in this module (the tests try them all for small ones).
        """
        hosts = self.hosts
        half = len(hosts) // 2
        if len(hosts) <= 12:
            halves = list(itertools.combinations(hosts, half))
        else:
            halves = self._neighbours()
        return min(self._cut(set(part)) for part in halves)

    def _neighbours(self) -> list[tuple[str, ...]]:
        """Halves of hosts that stand side by side: in their order, and in that of each other axis of a grid."""
        hosts = self.hosts
        half, axes = len(hosts) // 2, hosts[0].count(".") + 1

        def turned(host: str, axis: int) -> list[int]:
            place = [int(n) for n in host.split()[1].split(".")]
            return place[axis:] + place[:axis]

        halves = []
        for axis in range(axes):
            order = sorted(hosts, key=partial(turned, axis=axis))
            halves += [tuple((order + order)[i : i + half]) for i in range(len(hosts))]
        return halves

    def _cut(self, part: set[str]) -> float:
        """The maximum flow from `part` to the other hosts."""
        flow = networkx.DiGraph()
        for a, b, bandwidth in self.graph.edges(data="bandwidth"):
            flow.add_edge(a, b, capacity=bandwidth)
            flow.add_edge(b, a, capacity=bandwidth)
        for host in self.hosts:  # edges without a capacity carry anything
            flow.add_edge("source", host) if host in part else flow.add_edge(host, "sink")
        return networkx.maximum_flow_value(flow, "source", "sink")


def ring(hosts: int, bandwidth: float) -> Topology:
    """Each host has two neighbours."""
    return torus([hosts], bandwidth, "ring")


def torus(shape: Sequence[int], bandwidth: float, name: str = "torus") -> Topology:
    """A mesh whose ends are joined: 2 neighbours along each axis (1 along an axis of 2 hosts)."""
    if not shape or any(n < 2 for n in shape):
        raise ValueError(f"a torus has 2 hosts or more along each axis; got {list(shape)}")
    graph = networkx.Graph()
    for place in itertools.product(*map(range, shape)):
        graph.add_node(_host(place), kind="host", **_at(place, shape))
    for place in itertools.product(*map(range, shape)):
        for axis, n in enumerate(shape):
            neighbour = list(place)
            neighbour[axis] = (place[axis] + 1) % n
            graph.add_edge(_host(place), _host(neighbour), bandwidth=bandwidth)
    return Topology(name, graph)


def mesh(shape: Sequence[int], bandwidth: float) -> Topology:
    """A grid without the links that join its ends."""
    graph = networkx.Graph()
    for place in itertools.product(*map(range, shape)):
        graph.add_node(_host(place), kind="host", **_at(place, shape))
    for place in itertools.product(*map(range, shape)):
        for axis, n in enumerate(shape):
            if place[axis] + 1 < n:
                neighbour = list(place)
                neighbour[axis] += 1
                graph.add_edge(_host(place), _host(neighbour), bandwidth=bandwidth)
    return Topology("mesh", graph)


def star(hosts: int, bandwidth: float) -> Topology:
    """One switch that joins all: what NVSwitch is inside a node."""
    graph = networkx.Graph()
    graph.add_node("switch", kind="switch")
    for i in range(hosts):
        graph.add_node(f"host {i}", kind="host")
        graph.add_edge(f"host {i}", "switch", bandwidth=bandwidth)
    return Topology("one switch", graph, oversubscription=1.0)


def tree(depth: int, arity: int, bandwidth: float) -> Topology:
    """Switches in a tree, hosts at its leaves, all links alike: the higher, the more hosts share one link."""
    if depth < 1 or arity < 2:
        raise ValueError(
            f"a tree has depth 1 or more and 2 branches or more; got depth {depth}, arity {arity}"
        )
    graph = networkx.Graph()
    graph.add_node("switch", kind="switch")
    level = ["switch"]
    for d in range(1, depth + 1):
        below: list[str] = []
        for above in level:
            for i in range(arity):
                name = f"host {len(below)}" if d == depth else f"{above}.{i}"
                graph.add_node(name, kind="host" if d == depth else "switch")
                graph.add_edge(above, name, bandwidth=bandwidth)
                below.append(name)
        level = below
    return Topology("tree", graph, oversubscription=float(arity ** (depth - 1)))


def leaf_spine(
    leaves: int, spines: int, hosts_per_leaf: int, host_bandwidth: float, uplink_bandwidth: float
) -> Topology:
    """Every leaf switch has an uplink to every spine switch."""
    if min(leaves, spines, hosts_per_leaf) < 1:
        raise ValueError("leaves, spines and hosts_per_leaf are each at least 1")
    middle = partial(_middle, hosts=leaves * hosts_per_leaf)
    graph = networkx.Graph()
    for s in range(spines):
        graph.add_node(f"spine {s}", kind="switch", at=(middle(s, spines), 2.0))
    for leaf in range(leaves):
        graph.add_node(f"leaf {leaf}", kind="switch", at=(middle(leaf, leaves), 1.0))
        for s in range(spines):
            graph.add_edge(f"leaf {leaf}", f"spine {s}", bandwidth=uplink_bandwidth)
        for h in range(hosts_per_leaf):
            host = f"host {leaf * hosts_per_leaf + h}"
            graph.add_node(host, kind="host", at=(leaf * hosts_per_leaf + h, 0.0))
            graph.add_edge(host, f"leaf {leaf}", bandwidth=host_bandwidth)
    below, above = hosts_per_leaf * host_bandwidth, spines * uplink_bandwidth
    return Topology("leaf and spine", graph, oversubscription=below / above)


def fat_tree(ports: int, bandwidth: float) -> Topology:
    """k-port switches, all links alike, k^3 / 4 hosts, and still no oversubscription: 5 k^2 / 4 switches pay for it."""
    k, half = ports, ports // 2
    if k < 2 or k % 2:
        raise ValueError(f"a fat-tree is made of switches with an even number of ports; got {k}")
    middle = partial(_middle, hosts=k * half * half)
    graph = networkx.Graph()
    for i, j in itertools.product(range(half), repeat=2):
        graph.add_node(f"core {i}.{j}", kind="switch", at=(middle(i * half + j, half * half), 3.0))
    for pod in range(k):
        for i in range(half):
            at = middle(pod * half + i, k * half)
            graph.add_node(f"aggregation {pod}.{i}", kind="switch", at=(at, 2.0))
            graph.add_node(f"edge {pod}.{i}", kind="switch", at=(at, 1.0))
            for j in range(half):
                graph.add_edge(f"aggregation {pod}.{i}", f"core {i}.{j}", bandwidth=bandwidth)
        for i, j in itertools.product(range(half), repeat=2):
            graph.add_edge(f"edge {pod}.{i}", f"aggregation {pod}.{j}", bandwidth=bandwidth)
            number = pod * half * half + i * half + j
            host = f"host {number}"
            graph.add_node(host, kind="host", at=(float(number), 0.0))
            graph.add_edge(host, f"edge {pod}.{i}", bandwidth=bandwidth)
    return Topology("fat-tree", graph, oversubscription=1.0)


def all_to_all_seconds(topology: Topology, bytes_per_host: float) -> float:
    """The least time of an all-to-all in which every host sends `bytes_per_host` in all.

    Half of it crosses any halving of the hosts, in each direction: hosts / 2 * bytes_per_host / 2 (a little more, since
    no host sends to itself), and each host's own link must carry all of it.
    """
    hosts = len(topology.hosts)
    crossing = hosts / 2 * bytes_per_host * (hosts / 2) / (hosts - 1)
    narrowest = min(
        sum(d["bandwidth"] for _, _, d in topology.graph.edges(host, data=True))
        for host in topology.hosts
    )
    return max(crossing / topology.bisection(), bytes_per_host / narrowest)


def _host(place: Sequence[int]) -> str:
    return "host " + ".".join(map(str, place))


def _middle(i: int, count: int, hosts: int) -> float:
    """Where number i of `count` switches of one level stands, above the hosts 0 to hosts - 1 in a row."""
    return (i + 0.5) * hosts / count - 0.5


def _at(place: Sequence[int], shape: Sequence[int]) -> dict[str, tuple[float, float]]:
    """Where a host of a grid of two axes is drawn; nothing for others.

    Rows and columns are arcs, so that the link which joins the two ends of one is seen as its chord.
    """
    if len(shape) != 2:
        return {}

    def bow(along: int, n: int) -> float:
        return 0.3 * (1 - (2 * along / (n - 1) - 1) ** 2)

    (row, column), (rows, columns) = place, shape
    return {"at": (column + bow(row, rows), -row + bow(column, columns))}
