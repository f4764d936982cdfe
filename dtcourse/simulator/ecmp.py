"""Bytes over each link where every switch decides for itself: equal-cost multi-path, ECMP (RFC 2992).

    loads          bytes over each link, by direction
    link_seconds   how long each link is busy with them

nodes.py gives every shortest *way* the same part of a flow. A switch knows no ways: it knows which neighbours are one
link nearer to a packet's end, and gives each of these the same part, whatever their rates are and however many ways
begin there. On a whole leaf and spine or fat-tree the two agree. Where a link is missing they do not: a spine that has
lost half of its cables still gets the part of a whole one. Packets of one flow are counted here as if they were spread
evenly; a real switch puts each connection on one way, by a hash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import networkx

from dtcourse.simulator.nodes import Flow
from dtcourse.simulator.topology import Topology


def loads(topology: Topology, flows: Iterable[Flow]) -> dict[tuple[str, str], float]:
    """Bytes over each link, by direction. ValueError where there is no way from one host to another one."""
    carried: dict[tuple[str, str], float] = defaultdict(float)
    for a, b, nbytes in flows:
        left = networkx.single_source_shortest_path_length(topology.graph, b)
        if a not in left:
            raise ValueError(f"there is no way from {a} to {b} in the {topology.name}")
        # From the farthest node on: what comes to a node is complete when it is passed on.
        here = {a: nbytes}
        for distance in range(left[a], 0, -1):
            there: dict[str, float] = defaultdict(float)
            for node, amount in here.items():
                nearer = [n for n in topology.graph[node] if left[n] == distance - 1]
                for neighbour in nearer:
                    carried[node, neighbour] += amount / len(nearer)
                    there[neighbour] += amount / len(nearer)
            here = there
    return dict(carried)


def link_seconds(topology: Topology, flows: Iterable[Flow]) -> dict[tuple[str, str], float]:
    """How long each link is busy, by direction."""
    edges = topology.graph.edges
    return {link: n / edges[link]["bandwidth"] for link, n in loads(topology, flows).items()}
