"""Orders of a mesh's axes: groups as DeviceMesh has them, links by hand, and the emulated ranking of all orders."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import emulation, launch
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.simulator.cluster import Cluster
from dtcourse.simulator.cluster_collectives import predict
from dtcourse.simulator.rank_order import Use, groups, orders, part_of, seconds, spread

SIZES = {"pp": 2, "dp": 2, "tp": 2}
NODE = 4
FAST = EmulatedDevice(flops=1e18, bandwidth=1e18)  # the virtual clock is wanted, not its computing


def test_groups_are_device_meshs():
    sizes = {"a": 2, "b": 3, "c": 1}

    def run():
        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        return {axis: dist.get_process_group_ranks(mesh.get_group(axis)) for axis in sizes}

    for rank, found in enumerate(launch(run, 6, device="cpu")):
        for axis, ranks in found.items():
            assert ranks in groups(sizes, axis)
            assert rank in ranks


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (("pp", "dp", "tp"), {"pp": (2, 1), "dp": (1, 2), "tp": (1, 2)}),
        (("tp", "dp", "pp"), {"pp": (1, 2), "dp": (1, 2), "tp": (2, 1)}),
        (("dp", "tp", "pp"), {"pp": (1, 2), "dp": (2, 1), "tp": (1, 2)}),
    ],
)
def test_who_is_in_whose_node(order, expected):
    sizes = {axis: SIZES[axis] for axis in order}
    assert {axis: spread(sizes, axis, NODE) for axis in sizes} == expected


def test_a_group_over_some_ranks_of_each_node():
    """8 ranks of one axis, stride 2, on nodes of 4: on 4 nodes, two in each."""
    assert spread({"a": 8, "b": 2}, "a", 4) == (4, 2)


def test_groups_share_the_cards():
    """A group with 2 of a node's 8 GPUs has 2 of its 8 cards, one with a single GPU of 4 on two cards half a card."""
    eight = Cluster.of("H100", nodes=2)
    part = part_of(eight, {"dp": 4, "tp": 4}, "dp")
    assert (part.nodes, part.gpus, part.cards, part.card) == (2, 2, 2, eight.card)
    two = Cluster(2, 4, 450e9, cards=2, card=50e9)
    part = part_of(two, {"dp": 2, "tp": 4}, "dp")
    assert (part.nodes, part.gpus, part.cards, part.card) == (2, 1, 1, 25e9)


def test_one_group_over_all_is_the_cluster_itself():
    cluster = Cluster.of("H100", nodes=4)
    told = seconds(cluster, {"dp": 32}, [Use("dp", "all_reduce", 1e9, times=3)])
    assert told["dp"] == 3 * predict(cluster, "all_reduce", 1e9).seconds


def test_tensor_parallelism_belongs_into_the_node():
    """Megatron's rule, for a step in which tensor parallelism sends most: both of the best orders have it innermost."""
    uses = [
        Use("tp", "all_reduce", 64e6, 96),
        Use("dp", "all_reduce", 2e9),
        Use("pp", "send", 32e6, 16),
    ]
    found = orders(Cluster.of("H100", nodes=4), {"pp": 2, "dp": 2, "tp": 8}, uses)
    assert len(found) == 6
    assert {order[-1] for order in list(found)[:2]} == {"tp"}
    slowest = list(found)[-1]
    assert found[slowest] > 1.5 * found[next(iter(found))]


def test_emulated_orders_rank_as_predicted():
    """Ring all-reduces over every axis, on two nodes of four under the virtual clock: each axis's seconds are those of
    the link that `spread` names, and the orders come in the order that is predicted."""
    near, far = (1e-6, 400e9), (5e-6, 25e9)
    elements = {"tp": 1 << 20, "dp": 1 << 18, "pp": 1 << 16}
    network = EmulatedNetwork(*near, node_size=NODE, between=far)

    def run():
        taken = {}
        for order in itertools.permutations(SIZES):
            mesh = init_device_mesh("cpu", tuple(SIZES[a] for a in order), mesh_dim_names=order)
            for axis in order:
                x = torch.ones(elements[axis])
                begun = 1.0 + len(taken)
                emulation.sleep(begun - emulation.now())
                dist.all_reduce(x, group=mesh.get_group(axis))
                taken[order, axis] = emulation.now() - begun
        return taken

    measured = launch(run, 8, backend="ring", devices=FAST, network=network)
    total = {}
    for order in itertools.permutations(SIZES):
        sizes = {axis: SIZES[axis] for axis in order}
        for axis in order:
            latency, bandwidth = near if spread(sizes, axis, NODE)[0] == 1 else far
            # two ranks: two messages, each of half the vector
            expected = 2 * (latency + elements[axis] * 4 / 2 / bandwidth)
            for taken in measured:
                assert taken[order, axis] == pytest.approx(expected, rel=0.02)
        total[order] = max(sum(taken[order, axis] for axis in order) for taken in measured)
    cluster = Cluster(2, NODE, near[1], cards=NODE, card=far[1])
    uses = [Use(axis, "all_reduce", 4 * count) for axis, count in elements.items()]
    predicted = orders(cluster, SIZES, uses)
    assert sorted(total, key=lambda o: (round(total[o], 9), o)) == sorted(
        predicted, key=lambda o: (round(predicted[o], 9), o)
    )


def test_what_cannot_be():
    cluster = Cluster.of("H100", nodes=2)
    with pytest.raises(ValueError, match="pp 2 x tp 4 = 8 ranks, and 2 nodes of 8 have 16 GPUs"):
        seconds(cluster, {"pp": 2, "tp": 4}, [])
    with pytest.raises(ValueError, match="no axis 'cp'; the mesh has pp, tp"):
        seconds(cluster, {"pp": 2, "tp": 8}, [Use("cp", "all_reduce", 1.0)])
    with pytest.raises(ValueError, match="do not lie alike on their nodes"):
        spread({"a": 3, "b": 4}, "b", 6)
    with pytest.raises(ValueError, match="a 3 x b 4 = 12 ranks"):
        orders(cluster, {"a": 3, "b": 4}, [])
    with pytest.raises(ValueError, match="got 'gossip'"):
        orders(cluster, {"pp": 2, "tp": 8}, [Use("pp", "gossip", 1.0)])


def test_orders_that_lie_unevenly_are_left_out():
    """12 ranks on nodes of 6: four of them next to each other would lie on two nodes, three do not."""
    cluster = Cluster.of("H100", nodes=2, gpus=6)
    uses = [Use("a", "all_reduce", 1e6), Use("b", "all_reduce", 1e6)]
    assert list(orders(cluster, {"a": 3, "b": 4}, uses)) == [("b", "a")]
