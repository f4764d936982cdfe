"""Nodes as graphs of their links, and how long traffic takes on any graph.

    pcie_tree      GPUs below the switches of each processor; the processors are joined by one link
    nvlink_mesh    eight GPUs of six NVLinks each, wired in a hybrid cube mesh: some pairs have two, some one, some none
    nvswitch_star  every GPU to a switch at its full rate (here one; in a real node several, in parallel)
    cluster        such stars, joined by network cards

    flows          who sends how much to whom: (from, to, bytes); ring_flows, all_to_all_flows
    link_seconds   for each link and direction, how long its bytes take
    seconds        that of the busiest one: the bandwidth's part of the time, with all flows under way at once

A flow takes the ways with the fewest links, in equal parts. GPUs of a mesh pass on what is not for them, as NCCL does
over NVLink. The wiring of the mesh is that which `nvidia-smi topo -m` prints on a machine of eight V100 SXM2. Rates are
arguments: those of `hardware.links()`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import networkx

from dtcourse.emulation import EmulatedNetwork
from dtcourse.simulator.topology import Topology

Flow = tuple[str, str, float]

# Links between GPUs i and j of eight V100: "NV1" and "NV2" in the matrix of nvidia-smi.
WIRING = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def pcie_tree(bandwidth: float, gpus_per_switch: int = 4, processors: int = 2) -> Topology:
    """One switch below each processor, GPUs below it. All links alike, also that between two processors."""
    if gpus_per_switch < 1 or processors < 1:
        raise ValueError("gpus_per_switch and processors are each at least 1")
    graph = networkx.Graph()
    for c in range(processors):
        middle = (c + 0.5) * gpus_per_switch - 0.5
        graph.add_node(f"CPU {c}", kind="switch", at=(middle, 2.0))
        graph.add_node(f"switch {c}", kind="switch", at=(middle, 1.0))
        graph.add_edge(f"CPU {c}", f"switch {c}", bandwidth=bandwidth)
        for other in range(c):
            graph.add_edge(f"CPU {other}", f"CPU {c}", bandwidth=bandwidth)
        for i in range(c * gpus_per_switch, (c + 1) * gpus_per_switch):
            graph.add_node(f"GPU {i}", kind="host", at=(float(i), 0.0))
            graph.add_edge(f"switch {c}", f"GPU {i}", bandwidth=bandwidth)
    return Topology("PCIe tree", graph)


def nvlink_mesh(bandwidth: float) -> Topology:
    """The hybrid cube mesh of eight V100. bandwidth: of one GPU's six links together, one way."""
    corners = [(0, 0), (1.5, 0), (1.5, 1.5), (0, 1.5)]
    graph = networkx.Graph()
    for i in range(8):
        x, y = corners[i % 4]
        graph.add_node(f"GPU {i}", kind="host", at=(x + 0.75 * (i > 3), y + 0.35 * (i > 3)))
    for (a, b), count in WIRING.items():
        graph.add_edge(f"GPU {a}", f"GPU {b}", bandwidth=count * bandwidth / 6)
    return Topology("NVLink mesh", graph)


def nvswitch_star(bandwidth: float, gpus: int = 8) -> Topology:
    """Every GPU has its full rate to every other one."""
    graph = networkx.Graph()
    graph.add_node("NVSwitch", kind="switch", at=((gpus - 1) / 2, 1.0))
    for i in range(gpus):
        graph.add_node(f"GPU {i}", kind="host", at=(float(i), 0.0))
        graph.add_edge("NVSwitch", f"GPU {i}", bandwidth=bandwidth)
    return Topology("NVSwitch star", graph)


def cluster(nodes: int, gpus: int, inside: float, card: float, cards: int) -> Topology:
    """Stars joined by a switch that is never the limit. GPU i of a node uses card i * cards // gpus of it.

    inside: bytes a second of a GPU to its NVSwitch; card: of one network card. Hosts are "GPU 1.3": node 1, GPU 3.
    """
    if nodes < 1 or not 1 <= cards <= gpus:
        raise ValueError(f"a node has 1 to {gpus} cards for {gpus} GPUs; got {cards}")
    graph = networkx.Graph()
    graph.add_node("network", kind="switch", at=((nodes * gpus - 1) / 2, 3.0))
    for n in range(nodes):
        graph.add_node(f"NVSwitch {n}", kind="switch", at=((n + 0.5) * gpus - 0.5, -1.0))
        for i in range(gpus):
            graph.add_node(f"GPU {n}.{i}", kind="host", at=(float(n * gpus + i), 0.0))
            graph.add_edge(f"NVSwitch {n}", f"GPU {n}.{i}", bandwidth=inside)
            name = f"card {n}.{i * cards // gpus}"
            if name not in graph:
                graph.add_node(name, kind="switch", at=(float(n * gpus + i), 1.5))
                graph.add_edge(name, "network", bandwidth=card)
            # A port of its own makes the way by the card the longer one inside a node: NVSwitch carries what stays.
            graph.add_node(f"port {n}.{i}", kind="switch", at=(float(n * gpus + i), 0.75))
            graph.add_edge(f"GPU {n}.{i}", f"port {n}.{i}", bandwidth=card)
            graph.add_edge(f"port {n}.{i}", name, bandwidth=card)
    return Topology("cluster", graph)


def broken(topology: Topology, a: str, b: str, left: float = 0.0) -> Topology:
    """The same network with `left` bytes a second on the link between a and b; 0 takes it out."""
    if not topology.graph.has_edge(a, b):
        raise ValueError(f"there is no link between {a} and {b} in the {topology.name}")
    if not 0 <= left <= topology.graph.edges[a, b]["bandwidth"]:
        raise ValueError(
            f"what is left of a link is 0 up to its bandwidth in bytes a second; got {left}"
        )
    graph = topology.graph.copy()
    if left:
        graph.edges[a, b]["bandwidth"] = left
    else:
        graph.remove_edge(a, b)
    return Topology(topology.name, graph, topology.oversubscription)


def ring_flows(nbytes: float, *rings: Sequence[str]) -> list[Flow]:
    """All-reduce of a vector of nbytes: each host sends 2 (p - 1) / p of it to the next one. Several rings share it."""
    if not rings:
        raise ValueError("a ring is an order of hosts; got none")
    flows = []
    for order in rings:
        p = len(order)
        share = 2 * (p - 1) / p * nbytes / len(rings)
        flows += [(order[i], order[(i + 1) % p], share) for i in range(p)]
    return flows


def all_to_all_flows(hosts: Sequence[str], nbytes: float) -> list[Flow]:
    """Every host sends nbytes in all, in equal parts to the others."""
    part = nbytes / (len(hosts) - 1)
    return [(a, b, part) for a in hosts for b in hosts if a != b]


def loads(topology: Topology, flows: Iterable[Flow]) -> dict[tuple[str, str], float]:
    """Bytes over each link, by direction. ValueError where there is no way from one host to another one."""
    carried: dict[tuple[str, str], float] = defaultdict(float)
    for a, b, nbytes in flows:
        for way in (ways := _ways(topology, a, b)):
            for link in itertools.pairwise(way):
                carried[link] += nbytes / len(ways)
    return dict(carried)


def link_seconds(topology: Topology, flows: Iterable[Flow]) -> dict[tuple[str, str], float]:
    """How long each link is busy, by direction."""
    edges = topology.graph.edges
    return {link: n / edges[link]["bandwidth"] for link, n in loads(topology, flows).items()}


def seconds(topology: Topology, flows: Iterable[Flow]) -> float:
    """The least time of these flows at once: that of the link which is busy longest. Latencies are not in it."""
    return max(link_seconds(topology, flows).values(), default=0.0)


def emulated(
    topology: Topology, placement: Sequence[str], latency: float, gap: float = 0.0
) -> EmulatedNetwork:
    """The network that ranks feel, rank r on host placement[r]: for `launch(..., network=...)`.

    A pair has the bandwidth of the narrowest link between them, and `latency` for each link. That several pairs share
    a link inside is not emulated: for what is shared, ask `seconds`.
    """
    if len(set(placement)) != len(placement) or not set(placement) <= set(topology.hosts):
        raise ValueError(f"a placement names hosts of the {topology.name}, each once")
    cables = {}
    for i, a in enumerate(placement):
        for j, b in enumerate(placement):
            if i != j:
                ways = _ways(topology, a, b)
                widest = max(
                    min(topology.graph.edges[link]["bandwidth"] for link in itertools.pairwise(w))
                    for w in ways
                )  # fmt: skip
                cables[i, j] = EmulatedNetwork(latency * (len(ways[0]) - 1), widest, gap=gap)
    return EmulatedNetwork(latency, cables=cables)


def drawing(
    topology: Topology, busy: Mapping[tuple[str, str], float] | None = None
) -> tuple[dict[str, tuple[float, float]], list[tuple[str, str, float, float]]]:
    """For plots.graphs: where each node stands, and (a, b, GB/s, seconds busy in the busier direction) per link."""
    busy = busy or {}
    places = networkx.get_node_attributes(topology.graph, "at")
    places = places or networkx.circular_layout(topology.graph)
    links = [
        (_short(a), _short(b), bandwidth / 1e9, max(busy.get((a, b), 0.0), busy.get((b, a), 0.0)))
        for a, b, bandwidth in topology.graph.edges(data="bandwidth")
    ]
    return {_short(name): (float(x), float(y)) for name, (x, y) in places.items()}, links


def _short(name: str) -> str:
    return name.removeprefix("GPU ").removeprefix("host ")


def _ways(topology: Topology, a: str, b: str) -> list[list[str]]:
    """All ways from a to b with the fewest links."""
    try:
        return list(networkx.all_shortest_paths(topology.graph, a, b))
    except (networkx.NetworkXNoPath, networkx.NodeNotFound):
        raise ValueError(f"there is no way from {a} to {b} in the {topology.name}") from None
