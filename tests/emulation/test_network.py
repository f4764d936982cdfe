"""Emulated networks: validation, and transfers between ranks."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import time

import pytest
import torch
import torch.distributed as dist

from dtcourse import emulation, launch
from dtcourse.emulation import EmulatedNetwork, clock


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"latency": -1e-3}, "latency is in seconds"),
        ({"latency": math.inf}, "latency is in seconds"),
        ({"latency": "1 ms"}, "latency is in seconds"),
        ({"bandwidth": 0}, "bytes per second, above 0"),
        ({"bandwidth": True}, "bytes per second"),
        ({"gap": -1e-6}, "gap is in seconds per message, 0 or more"),
        ({"node_size": 0}, "number of ranks, 1 or more; got 0"),
        ({"node_size": 1.5}, "number of ranks"),
        ({"between": (1e-3, 1e6)}, "give node_size"),
        ({"node_size": 2, "between": 1e-3}, "between= is .latency"),
        ({"node_size": 2, "between": (-1, 1e6)}, "latency is in seconds"),
        ({"cables": {(1, 1): EmulatedNetwork()}}, "from one rank to another one"),
        ({"cables": {3: EmulatedNetwork()}}, "from one rank to another one"),
        ({"cables": {(0, 1): 1e6}}, "without nodes and cables of its own"),
        ({"node_size": 2, "between": EmulatedNetwork(node_size=2)}, "no nodes of its own"),
    ],
)
def test_what_is_no_network_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        EmulatedNetwork(**wrong)


def test_links_inside_and_between_nodes():
    net = EmulatedNetwork(1e-3, 1e9, node_size=2, between=(10e-3, 1e8))
    assert not net.crosses(0, 1)
    assert net.crosses(1, 2)
    assert net.seconds(10**6, 0, 1) == pytest.approx(2e-3)
    assert net.seconds(10**6, 1, 2) == pytest.approx(20e-3)
    assert pickle.loads(pickle.dumps(net)) == net


def test_a_cable_of_its_own_goes_one_way():
    slow = EmulatedNetwork(2e-3, 1e6)
    network = EmulatedNetwork(1e-3, 1e9, cables={(0, 2): slow}, node_size=2, between=(5e-3, 1e8))
    assert network.link(0, 2) is slow
    assert network.link(2, 0).bandwidth == 1e8 and network.link(0, 1).bandwidth == 1e9
    again = pickle.loads(pickle.dumps(network))
    assert again == network and again.link(0, 2) == slow and hash(again) == hash(network)
    assert dataclasses.replace(network, latency=0.0).link(0, 2) is slow


def test_collective_seconds_by_hand():
    net = EmulatedNetwork(latency=1e-3, bandwidth=1e6)
    ranks = [0, 1, 2, 3]
    # 6 steps of 1 ms and a quarter of the 4000 bytes each
    assert net.collective_seconds("all_reduce", 4000, ranks) == pytest.approx(6 * 2e-3)
    assert net.collective_seconds("all_gather", 4000, ranks) == pytest.approx(3 * 2e-3)
    assert net.collective_seconds("broadcast", 4000, ranks) == pytest.approx(2 * 5e-3)
    assert net.collective_seconds("barrier", 0, ranks) == pytest.approx(6e-3)
    assert net.collective_seconds("all_reduce", 4000, [0]) == 0
    slow = EmulatedNetwork(0, 1e6, node_size=2, between=(0, 1e3))
    assert slow.collective_seconds("all_reduce", 4000, [0, 1]) == pytest.approx(4e-3)
    assert slow.collective_seconds("all_reduce", 4000, ranks) == pytest.approx(6.0)


# --- on ranks: the virtual clock ---------------------------------------------------------------------------------


def _one_way(nbytes):
    """When rank 1 has a message that rank 0 sent at 1 s."""
    x = torch.zeros(nbytes, dtype=torch.uint8)
    if dist.get_rank() == 0:
        emulation.sleep(1.0)
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
    return emulation.now()


@pytest.mark.parametrize("backend", ["gloo", "ring"])
@pytest.mark.parametrize(
    ("latency", "bandwidth", "gap", "nbytes"),
    [
        (10e-3, math.inf, 0.0, 8),
        (0.0, 1e8, 0.0, 10**6),
        (5e-3, 5e7, 0.0, 2 * 10**6),
        (1e-3, 1e8, 2e-3, 10**6),
    ],
)
def test_a_transfer_takes_latency_gap_and_size_over_bandwidth(
    backend, latency, bandwidth, gap, nbytes
):
    net = EmulatedNetwork(latency, bandwidth, gap=gap)
    run = launch(_one_way, 2, nbytes, backend=backend, network=net, clock="virtual")
    assert run[1] == pytest.approx(1.0 + latency + gap + nbytes / bandwidth)
    assert run[0] == pytest.approx(1.0 + gap + nbytes / bandwidth)  # it may use its tensor again


def _two_on_one_link():
    """Two messages posted at once: when each had arrived."""
    x, y = torch.zeros(10**6, dtype=torch.uint8), torch.zeros(10**6, dtype=torch.uint8)
    if dist.get_rank() == 0:
        for work in (dist.isend(x, 1), dist.isend(y, 1, tag=1)):
            work.wait()
        return None
    works, times = [dist.irecv(x, 0), dist.irecv(y, 0, tag=1)], []
    for work in works:
        work.wait()
        times.append(emulation.now())
    return times


def test_two_transfers_on_one_link_queue():
    net = EmulatedNetwork(latency=10e-3, bandwidth=40e6)  # 25 ms per message
    times = launch(_two_on_one_link, 2, backend="ring", network=net, clock="virtual")[1]
    assert times == pytest.approx([35e-3, 60e-3])


def _shorter_than_its_tensor():
    if dist.get_rank() == 0:
        dist.send(torch.ones(10), 1)
    else:
        dist.recv(torch.zeros(100), 0)
    return emulation.now()


def test_a_message_shorter_than_its_tensor_takes_its_own_time():
    net = EmulatedNetwork(latency=1.0, bandwidth=40)
    assert (
        launch(_shorter_than_its_tensor, 2, backend="gloo", network=net, clock="virtual")[1] == 2.0
    )


def _overlap(asynchronous):
    """An all-reduce and a computation of 80 ms each."""
    x = torch.ones(10**6)
    began = emulation.now()
    work = dist.all_reduce(x, async_op=True)
    if not asynchronous:
        work.wait()
    emulation.sleep(0.08)
    work.wait()
    assert x[0] == 2
    return emulation.now() - began


@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_asynchronous_operations_overlap_with_computation(backend):
    net = EmulatedNetwork(latency=0, bandwidth=50e6)  # 2 steps of half the 4 MB: 80 ms
    for asynchronous, seconds in ((False, 0.16), (True, 0.08)):
        run = launch(_overlap, 2, asynchronous, backend=backend, network=net, clock="virtual")
        assert list(run) == pytest.approx([seconds] * 2)


def _all_reduce(nbytes):
    began = emulation.now()
    dist.all_reduce(torch.zeros(nbytes, dtype=torch.uint8))
    return emulation.now() - began


def test_gloos_own_collective_takes_what_the_model_says():
    net = EmulatedNetwork(latency=5e-3, bandwidth=20e6)
    run = launch(_all_reduce, 2, 10**6, backend="gloo", network=net, clock="virtual")
    assert list(run) == pytest.approx([0.06] * 2)  # 2 steps of 5 ms and half a MB


def _two_levels():
    """When each rank has a message from rank 0."""
    x = torch.zeros(1)
    if dist.get_rank():
        dist.recv(x, 0)
        return emulation.now()
    for peer in range(1, dist.get_world_size()):
        dist.send(x, peer)
    return None


def test_links_between_nodes_are_slower():
    net = EmulatedNetwork(latency=10e-3, node_size=2, between=(40e-3, math.inf))
    run = launch(_two_levels, 4, backend="ring", network=net, clock="virtual")
    assert list(run)[1:] == pytest.approx([10e-3, 40e-3, 40e-3])


# --- and the wall's: a sleep is never shorter than asked for -----------------------------------------------------


def _stamped(nbytes):
    """Seconds from the send on rank 0 to the end of the receive on rank 1, on the machine's own clock."""
    x, stamp = torch.zeros(nbytes, dtype=torch.uint8), torch.zeros(1, dtype=torch.float64)
    if dist.get_rank() == 0:
        stamp[0] = time.monotonic()
        dist.send(x, 1)
        dist.send(stamp, 1)
        return None
    dist.recv(x, 0)
    arrived = time.monotonic()
    dist.recv(stamp, 0)
    return arrived - stamp.item()


@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_on_the_wall_clock_a_message_is_never_early(backend):
    net = EmulatedNetwork(latency=20e-3, bandwidth=1e8)
    assert launch(_stamped, 2, 10**6, backend=backend, network=net, clock="wall")[1] >= 30e-3


def test_a_network_changes_no_number():
    def numbers():
        torch.manual_seed(dist.get_rank())
        x = torch.randn(1000)
        dist.all_reduce(x)
        return x, clock.installed() is not None

    for backend in ("ring", "gloo"):
        plain = launch(numbers, 3, backend=backend)
        slow = launch(numbers, 3, backend=backend, network=EmulatedNetwork(1e-3, 1e8))
        assert [p[1] for p in plain] == [False] * 3
        assert [s[1] for s in slow] == [True] * 3
        for (a, _), (b, _) in zip(plain, slow, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    "network",
    [
        EmulatedNetwork(1e-6, 1e9, gap=2e-6, shared_ports=True),
        EmulatedNetwork(1e-6, 1e9, node_size=2, between=EmulatedNetwork(5e-6, 1e8)),
        EmulatedNetwork(cables={(1, 0): EmulatedNetwork(1e-3, 1e7), (0, 2): EmulatedNetwork(2e-3)}),
    ],
)
def test_a_network_as_data_is_numbers_and_lists_and_the_same_network_again(network):
    data = network.as_data()
    assert json.loads(json.dumps(data)) == data
    again = EmulatedNetwork.from_data(data)
    assert again == network
    assert again.link(1, 0) == network.link(1, 0) and again.link(0, 2) == network.link(0, 2)
