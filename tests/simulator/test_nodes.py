"""Nodes as graphs: times of traffic against hand counts, and the ranks' own messages on the links that emulate them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dtcourse import emulation, launch
from dtcourse.simulator import nodes, topology

N = 8e9
MESH = nodes.nvlink_mesh(150e9)
WIDE = [f"GPU {i}" for i in (0, 3, 2, 1, 5, 6, 7, 4)]  # two NVLinks between any two neighbours
NARROW = [f"GPU {i}" for i in (0, 1, 3, 7, 5, 4, 6, 2)]  # one


def test_every_gpu_of_the_mesh_has_six_links():
    for host in MESH.hosts:
        rates = [edge["bandwidth"] for edge in MESH.graph[host].values()]
        assert sum(rates) == pytest.approx(150e9)
        assert len(rates) == 4


def test_no_gpu_of_the_drawn_mesh_lies_on_a_link_of_others():
    """Or nobody sees whether the line goes on."""
    places, links = nodes.drawing(MESH)
    for a, b, *_ in links:
        start, end = torch.tensor(places[a]), torch.tensor(places[b])
        for name in places.keys() - {a, b}:
            to_gpu, along = torch.tensor(places[name]) - start, end - start
            share = (to_gpu @ along / (along @ along)).clamp(0, 1)
            assert (to_gpu - share * along).norm() > 0.2, f"{name} on {a} to {b}"


def test_rings_on_the_mesh():
    def seconds(*rings):
        return nodes.seconds(MESH, nodes.ring_flows(N, *rings))

    assert seconds(WIDE) == pytest.approx(1.75 * N / 50e9)
    assert seconds(NARROW) == pytest.approx(1.75 * N / 25e9)
    # GPU 3 and GPU 4 have no link: half goes by GPU 0, half by GPU 7; those links carry it beside their own.
    in_order = nodes.loads(MESH, nodes.ring_flows(N, MESH.hosts))
    assert in_order["GPU 3", "GPU 7"] == pytest.approx(1.75 * N / 2)
    assert ("GPU 3", "GPU 4") not in in_order
    # Two rings on the double links and one on the single ones, in both directions: all six links of a GPU.
    six = [WIDE, WIDE, NARROW]
    six += [ring[::-1] for ring in six]
    assert seconds(*six) == pytest.approx(1.75 * N / 150e9)


def test_pcie_shares_the_way_up():
    tree = nodes.pcie_tree(31e9)
    inside = nodes.ring_flows(N, tree.hosts)
    assert nodes.seconds(tree, inside) == pytest.approx(1.75 * N / 31e9)
    zigzag = [tree.hosts[i] for i in (0, 4, 1, 5, 2, 6, 3, 7)]
    assert nodes.seconds(tree, nodes.ring_flows(N, zigzag)) == pytest.approx(4 * 1.75 * N / 31e9)
    # 4 GPUs send 4 / 7 of theirs to the other side
    crossing = 4 * 4 / 7 * N / 31e9
    assert nodes.seconds(tree, nodes.all_to_all_flows(tree.hosts, N)) == pytest.approx(crossing)


def test_the_star_and_the_bound_by_bisection():
    star = nodes.nvswitch_star(450e9)
    assert nodes.seconds(star, nodes.all_to_all_flows(star.hosts, N)) == pytest.approx(N / 450e9)
    for net in (star, nodes.pcie_tree(31e9), MESH):
        real = nodes.seconds(net, nodes.all_to_all_flows(net.hosts, N))
        assert real >= topology.all_to_all_seconds(net, N) * (1 - 1e-9)


@pytest.mark.parametrize(("cards", "share"), [(8, 1), (4, 2), (1, 8)])
def test_a_clusters_cards_are_shared(cards, share):
    net = nodes.cluster(2, 8, 450e9, 50e9, cards)
    assert len(net.hosts) == 16
    crossing = [(f"GPU 0.{i}", f"GPU 1.{i}", N) for i in range(8)]
    assert nodes.seconds(net, crossing) == pytest.approx(share * N / 50e9)
    one_ring = nodes.ring_flows(N, net.hosts)  # leaves each node once
    assert nodes.seconds(net, one_ring) == pytest.approx(2 * 15 / 16 * N / 50e9)


def test_gpus_of_a_node_that_share_a_card_talk_by_nvswitch():
    net = nodes.cluster(2, 8, 450e9, 50e9, 1)
    carried = nodes.loads(net, [("GPU 0.0", "GPU 0.1", N)])
    assert carried == {("GPU 0.0", "NVSwitch 0"): N, ("NVSwitch 0", "GPU 0.1"): N}


def test_broken_links():
    half = nodes.broken(MESH, "GPU 0", "GPU 3", 25e9)
    assert nodes.seconds(half, nodes.ring_flows(N, WIDE)) == pytest.approx(1.75 * N / 25e9)
    assert MESH.graph.edges["GPU 0", "GPU 3"]["bandwidth"] == 50e9  # the original is whole
    gone = nodes.broken(MESH, "GPU 0", "GPU 3")
    assert not gone.graph.has_edge("GPU 0", "GPU 3")
    cut = nodes.broken(nodes.nvswitch_star(1e9, 2), "NVSwitch", "GPU 0")
    with pytest.raises(ValueError, match="no way from GPU 0 to GPU 1"):
        nodes.seconds(cut, [("GPU 0", "GPU 1", 1.0)])


def _one_message(nbytes):
    ball = torch.zeros(nbytes // 4)
    if dist.get_rank() == 0:
        dist.send(ball, 1)
    else:
        dist.recv(ball, 0)
    return emulation.now()


@pytest.mark.parametrize(
    ("placement", "seconds"),
    [(("GPU 0", "GPU 3"), 1e-5 + 1e6 / 50e9), (("GPU 0", "GPU 1"), 1e-5 + 1e6 / 25e9),
     (("GPU 0", "GPU 6"), 2e-5 + 1e6 / 25e9)],
)  # fmt: skip
def test_ranks_feel_the_links_between_their_gpus(placement, seconds):
    network = nodes.emulated(MESH, placement, latency=1e-5)
    run = launch(
        _one_message, 2, 1_000_000, backend="ring", device="cpu", network=network, clock="virtual"
    )
    assert run[1] == pytest.approx(seconds)


def test_a_drawing_has_all_nodes_and_links():
    places, links = nodes.drawing(MESH, {("GPU 0", "GPU 3"): 2.0, ("GPU 3", "GPU 0"): 1.0})
    assert set(places) == set("01234567") and len(links) == 16
    assert {busy for a, b, _, busy in links if {a, b} == {"0", "3"}} == {2.0}
    assert len(nodes.drawing(topology.ring(4, 1.0))[0]) == 4  # no places of its own: a circle


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nodes.broken(MESH, "GPU 0", "GPU 6"), "no link between GPU 0 and GPU 6"),
        (lambda: nodes.broken(MESH, "GPU 0", "GPU 3", 1e12), "0 up to its bandwidth"),
        (lambda: nodes.cluster(2, 8, 1.0, 1.0, 9), "1 to 8 cards for 8 GPUs; got 9"),
        (lambda: nodes.pcie_tree(1.0, 0), "at least 1"),
        (lambda: nodes.emulated(MESH, ["GPU 0", "GPU 0"], 0.0), "each once"),
        (lambda: nodes.emulated(MESH, ["GPU 9"], 0.0), "names hosts"),
        (lambda: nodes.ring_flows(1.0), "got none"),
    ],
)
def test_what_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()
