"""Bytes by ECMP: against a chain of visits solved as linear equations, and against whole networks' equal ways."""

from __future__ import annotations

import random

import networkx
import numpy
import pytest

from dtcourse.simulator import ecmp, nodes, topology

RATE = 50e9


def by_equations(graph: networkx.Graph, a: str, b: str) -> dict[tuple[str, str], float]:
    """Another way to the same: a packet's expected visits of each node, times the chance of each step."""
    names = list(networkx.node_connected_component(graph, b))
    left = networkx.single_source_shortest_path_length(graph, b)
    step = numpy.zeros((len(names), len(names)))
    for i, node in enumerate(names):
        nearer = [
            j for j, n in enumerate(names) if graph.has_edge(node, n) and left[n] < left[node]
        ]
        step[i, nearer] = 1 / max(1, len(nearer))
    visits = numpy.linalg.solve(numpy.eye(len(names)) - step.T, numpy.array(names) == a)
    crossed = visits[:, None] * step
    return {(names[i], names[j]): crossed[i, j] for i, j in zip(*crossed.nonzero(), strict=True)}


@pytest.mark.parametrize("seed", range(6))
def test_broken_networks_against_linear_equations(seed):
    draw = random.Random(seed)
    whole = draw.choice(
        [topology.torus([4, 4], RATE), topology.fat_tree(4, RATE), nodes.nvlink_mesh(RATE)]
    )
    net, taken = whole, 0
    while taken < 3:
        less = nodes.broken(net, *draw.choice(list(net.graph.edges)))
        if networkx.is_connected(less.graph):
            net, taken = less, taken + 1
    a, b = draw.sample(net.hosts, 2)
    found, right = ecmp.loads(net, [(a, b, 8.0)]), by_equations(net.graph, a, b)
    assert set(found) == set(right)
    assert all(found[link] == pytest.approx(8 * part) for link, part in right.items())


def test_whole_leaf_and_spine_gives_each_way_the_same():
    net = topology.leaf_spine(4, 2, 2, RATE, RATE)
    flows = nodes.all_to_all_flows(net.hosts, 1e9)
    found, ways = ecmp.link_seconds(net, flows), nodes.link_seconds(net, flows)
    assert found == pytest.approx(ways)


def test_a_switch_counts_neighbours_and_not_ways():
    """Two neighbours are nearer; two ways begin at one of them, one way at the other."""
    graph = networkx.Graph()
    for link in ("ab", "ac", "bd", "be", "cd", "dz", "ez"):
        graph.add_edge(*link, bandwidth=1.0)
    networkx.set_node_attributes(graph, "host", "kind")
    net = topology.Topology("small", graph)
    assert ecmp.loads(net, [("a", "z", 4.0)])["a", "b"] == 2.0
    assert nodes.loads(net, [("a", "z", 3.0)])["a", "b"] == 2.0
    assert ecmp.loads(net, [("a", "z", 4.0)])["d", "z"] == 3.0


def test_no_way_is_an_error():
    net = nodes.broken(topology.mesh([2], RATE), "host 0", "host 1")
    with pytest.raises(ValueError, match="no way from host 0 to host 1"):
        ecmp.loads(net, [("host 0", "host 1", 1.0)])
