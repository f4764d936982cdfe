"""Rounds on graphs: hand counts, the bytes of collectives/terms.py, and the messages that our own algorithms send."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.simulator import collective_cost as cost
from dtcourse.simulator import nodes, shared_links, topology

N = 8e6
STAR = topology.star(8, 1e9)


@pytest.mark.parametrize(
    ("algorithm", "collective"),
    [
        ("ring", "all_reduce"), ("ring", "reduce_scatter"), ("ring", "all_gather"), ("tree", "all_reduce"),
        ("tree", "broadcast"), ("halving_doubling", "all_reduce"), ("halving_doubling", "all_gather"),
    ],
)  # fmt: skip
def test_on_one_switch_it_is_the_alpha_beta_model(algorithm, collective):
    """Where no link is shared, a round takes its bytes over one port: the bytes of the critical path."""
    told = cost.seconds(algorithm, collective, N, 8, cost.Link(0.0, 1e-9), chunk_bytes=None)
    assert shared_links.seconds(STAR, algorithm, collective, N) == pytest.approx(told)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving_doubling"])
def test_messages_are_those_that_the_algorithm_sends(algorithm):
    """Bytes from rank to rank, of four: counted on real ranks."""

    def step():
        dist.all_reduce(torch.ones(1000))

    traffic = launch(step, 4, backend=algorithm, device="cpu", record=True).traffic
    told: Counter[tuple[int, int]] = Counter()
    net = topology.star(4, 1e9)
    for times, flows in shared_links.rounds(net, algorithm, "all_reduce", 4000):
        for a, b, nbytes in flows:
            told[net.hosts.index(a), net.hosts.index(b)] += times * nbytes
    counted = {
        (a, b): traffic.bytes_sent(rank=a, peer=b)
        for a in range(4)
        for b in range(4)
        if a != b and traffic.bytes_sent(rank=a, peer=b)
    }
    assert dict(told) == counted


@pytest.mark.parametrize(
    ("net", "ring", "halves"),
    [
        (topology.leaf_spine(4, 1, 4, 50e9, 50e9), 37.5, 127.5),
        (topology.leaf_spine(4, 4, 4, 50e9, 50e9), 37.5, 37.5),
        (topology.ring(16, 50e9), 37.5, 132.5),
        (nodes.pcie_tree(31e9), 56.45, 153.2),
    ],
)
def test_shared_links_make_the_far_partners_slow(net, ring, halves):
    """ms for 1 GB. Where the middle carries all, equal times; else the ring is 2.7 to 3.5 times as fast."""
    for algorithm, told in (("ring", ring), ("halving_doubling", halves)):
        found = 1e3 * shared_links.seconds(net, algorithm, "all_reduce", 1e9)
        assert found == pytest.approx(told, rel=1e-3)


def test_all_to_all_at_once():
    told = nodes.seconds(STAR, nodes.all_to_all_flows(STAR.hosts, N * 7 / 8))
    assert shared_links.seconds(STAR, "direct", "all_to_all", N) == pytest.approx(told)


def test_the_busiest_link():
    fabric = topology.leaf_spine(2, 1, 4, 50e9, 50e9)
    assert "spine 0" in shared_links.busiest_link(fabric, "halving_doubling", "all_reduce", N)
    assert shared_links.busiest_link(topology.star(1, 1e9), "ring", "all_reduce", N) == ("", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((STAR, "ring", "scatter", 1), "on a graph there are all_reduce, .*'scatter'"),
        ((STAR, "halving_doubling", "broadcast", 1), "broadcast on a graph is by tree; got"),
        ((STAR, "ring", "all_reduce", -1), "bytes are 0 or more; got -1"),
        ((topology.star(6, 1.0), "halving_doubling", "all_reduce", 1), "a power of two .* got 6"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        shared_links.seconds(*arguments)
