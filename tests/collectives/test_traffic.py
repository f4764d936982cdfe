"""Messages and bytes: exact for our own backends, the textbook's volume for torch's."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import sys
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.collectives import EmulatedNetwork, p2p, ring, traffic
from dtcourse.collectives.counted import RankRecord, Row, Traffic
from dtcourse.collectives.traffic import Counter, Label
from tests.turns import taking_turns


def test_queries_on_rows_made_by_hand():
    rows = [
        Row(0, "all_reduce", "backward", "sent", 1, 3, 300),
        Row(0, "all_reduce", "backward", "received", 1, 2, 200),
        Row(1, "broadcast", "forward", "sent", 0, 1, 50),
    ]
    both = Traffic.from_ranks(
        [
            RankRecord(rows[:2], {(0, "all_reduce", "backward"): 1}),
            None,  # a rank that counted nothing
            RankRecord(rows[2:], {(1, "broadcast", "forward"): 1, (1, "barrier", "forward"): 2}),
        ]
    )
    assert both.bytes_sent() == 350
    assert (
        both.bytes_sent(rank=0) == both.bytes_sent(operation="all_reduce", phase="backward") == 300
    )
    assert both.bytes_sent(peer=0) == 50
    assert both.messages_sent() == 4
    assert (both.bytes_received(), both.messages_received()) == (200, 2)
    assert both.calls() == 4
    assert both.calls(operation="barrier") == both.calls(rank=1, operation="barrier") == 2
    assert both.ranks == [0, 1]
    assert both.operations == ["all_reduce", "broadcast", "barrier"]
    assert both.matrix() == [[0, 300], [50, 0]]
    assert "all_reduce  backward" in str(both)
    assert repr(both) == (
        "Traffic(2 ranks, 4 messages, 350 bytes sent: all_reduce, broadcast, barrier)"
    )
    assert str(Traffic()) == "no traffic"


def test_the_table_has_a_row_for_each_operation():
    counter = Counter(rank=3)
    label = Label("reduce", "forward")
    counter.call(label)
    counter.message(label, "sent", 0, 10)
    (row,) = pickle.loads(pickle.dumps(Traffic.from_ranks([counter.record()]))).table()
    assert row == {
        "rank": 3,
        "operation": "reduce",
        "phase": "forward",
        "calls": 1,
        "messages sent": 1,
        "bytes sent": 10,
        "messages received": 0,
        "bytes received": 0,
    }


def test_threads_lose_no_count():
    counter = Counter(rank=0)

    def count():
        for _ in range(20_000):
            counter.message(Label("send", "forward"), "sent", 1, 7)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=count) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    sys.setswitchinterval(interval)
    assert counter.messages_sent() == 80_000
    assert counter.bytes_sent() == 560_000


def test_algorithmic_bytes_are_those_of_nccl_tests():
    assert traffic.algorithmic_bytes("all_reduce", 1000, 4) == 1500
    assert traffic.algorithmic_bytes("all_gather", 1000, 4) == 750
    assert traffic.algorithmic_bytes("reduce_scatter", 1000, 4) == 750
    assert traffic.algorithmic_bytes("all_to_all", 1000, 4) == 750
    assert traffic.algorithmic_bytes("barrier", 0, 4) == 0
    assert traffic.algorithmic_bytes("all_reduce", 1000, 1) == 0


# --- on ranks ---------------------------------------------------------------------------------------------------


def _one_all_reduce(elements):
    with traffic.counting() as counted:
        dist.all_reduce(torch.ones(elements), async_op=True).wait()
    dist.all_reduce(torch.ones(elements))  # after the end: not counted
    return counted.record()


@pytest.mark.parametrize("ranks", [3, *taking_turns(2, 4, about="dtcourse/collectives/")])
def test_the_ring_sends_what_the_textbook_says(ranks):
    elements = 12 * 1000
    total = Traffic.from_ranks(launch(_one_all_reduce, ranks, elements, backend="ring"))
    for rank in range(ranks):
        sent = total.bytes_sent(rank=rank, operation="all_reduce")
        assert sent == 2 * (ranks - 1) * elements * 4 // ranks == total.bytes_received(rank=rank)
        assert total.bytes_sent(rank=rank, peer=(rank + 1) % ranks) == sent  # to the right only
        assert total.calls(rank=rank) == 1
    assert not total.algorithmic


def _train_ddp():
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(nn.Linear(9, 11))
    with traffic.counting() as counted:
        model(torch.ones(2, 9)).sum().backward()
        with traffic.phase("optimizer"):
            dist.all_reduce(torch.ones(1))
    return counted.record()


def _train_fsdp():
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(nn.Linear(9, 12))
    with traffic.counting() as counted:
        model(torch.ones(2, 9)).sum().backward()
    return counted.record()


def test_ddp_sends_its_gradients_in_the_backward_pass():
    total = Traffic.from_ranks(launch(_train_ddp, 2, backend="ring"))
    gradients = (9 * 11 + 11) * 4
    assert total.bytes_sent(rank=0, operation="all_reduce", phase="backward") == gradients
    assert total.bytes_sent(rank=0, phase="forward") == 0
    assert total.bytes_sent(rank=0, phase="optimizer") == 4


def test_fsdp_gathers_in_both_passes_and_scatters_in_backward():
    # fully_shard keeps the root's parameters gathered until backward, so forward is the only all-gather here.
    total = Traffic.from_ranks(launch(_train_fsdp, 2, backend="ring"))
    half = (9 * 12 + 12) * 4 // 2
    assert total.bytes_sent(rank=1, operation="all_gather", phase="forward") == half
    assert total.bytes_sent(rank=1, operation="reduce_scatter", phase="backward") == half
    assert total.bytes_sent(rank=1) == 2 * half


def test_torchs_own_backend_is_counted_by_algorithmic_volume():
    run = launch(_train_fsdp, 2, backend="gloo", record=True)
    total = Traffic.from_ranks(run)
    half = (9 * 12 + 12) * 4 // 2
    assert total.algorithmic
    assert total.bytes_sent(rank=1, operation="all_gather", phase="forward") == half
    assert total.bytes_sent(rank=1, operation="reduce_scatter", phase="backward") == half
    assert "algorithmic bytes" in str(total)
    assert "algorithmic bytes" in repr(total)
    assert run.traffic.calls(operation="all_gather") == 2  # the whole run is counted as well


_UNANSWERED = torch.empty(1000)


def _messages():
    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = torch.ones(5), torch.empty(5)
    work = dist.isend(x, (rank + 1) % size)
    p2p.irecv(_UNANSWERED, (rank - 1) % size, tag=7)  # nobody sends this one, so it brings no byte
    dist.recv(y, (rank - 1) % size)
    work.wait()


@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_messages_are_exact_on_every_backend(backend):
    run = launch(_messages, 3, backend=backend, record=True)
    assert run.traffic.matrix() == [[0, 20, 0], [0, 0, 20], [20, 0, 0]]
    assert [run.traffic.bytes_received(rank) for rank in range(3)] == [20, 20, 20]
    assert not run.traffic.algorithmic
    assert [e.name for e in run.timeline.of(rank=0, lane="messages")].count("send") == 1
    event = run.timeline.of(rank=0, name="send").events[0]
    assert (event.bytes, event.detail["peer"], event.detail["elements"]) == (20, 1, 5)


def _anysource():
    if dist.get_rank() == 0:
        sources = sorted(dist.recv(torch.empty(4)) for _ in range(2))
        assert sources == [1, 2]
    else:
        dist.send(torch.ones(4), 0)


def test_receiving_from_any_source_counts_the_source():
    run = launch(_anysource, 3, backend="ring", record=True, network=EmulatedNetwork(1e-3, 1e9))
    assert run.traffic.bytes_received(rank=0, peer=1) == 16
    assert run.traffic.bytes_received(rank=0, peer=2) == 16


def test_the_notes_of_an_emulated_network_are_not_counted():
    run = launch(_messages, 2, backend="ring", record=True, network=EmulatedNetwork(1e-3))
    assert run.traffic.messages_sent() == 2
    assert run.traffic.bytes_sent() == 40


def test_collectives_are_recorded_also_those_from_c_plus_plus():
    for backend in ("gloo", "ring"):
        run = launch(_train_ddp, 2, backend=backend, record=True)
        events = run.timeline.of(rank=0, name="all_reduce", lane="collectives").events
        assert [e.detail["phase"] for e in events] == ["backward", "optimizer"]
        assert events[0].bytes == (9 * 11 + 11) * 4
        assert events[0].end > events[0].start


# --- against the system's own counter ---------------------------------------------------------------------------

BYTES_RECEIVED = 128  # tcpi_bytes_received: where it stands in Linux's struct tcp_info


def _received():
    """Bytes that have arrived at this process over TCP, since its connections were made."""
    total = 0
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            with socket.socket(fileno=os.dup(number)) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # no socket, or not TCP's
            continue
        total += struct.unpack_from("Q", info, BYTES_RECEIVED)[0]
    return total


def _count_both(elements, times):
    x = torch.ones(elements)
    dist.all_reduce(x)  # all connections are there
    dist.barrier()
    before = _received()
    with traffic.counting() as counted:
        for _ in range(times):
            dist.all_reduce(x)
    dist.barrier()
    return counted.record(), _received() - before


@pytest.mark.skipif(
    sys.platform != "linux", reason="needs Linux, which counts each connection's bytes"
)
@pytest.mark.parametrize("backend", ["ring", "halving_doubling"])
def test_counts_agree_with_what_the_systems_connections_received(backend):
    """Beside each message gloo sends 48 bytes of its own, and as many to answer; then there is the barrier."""
    run = launch(_count_both, 2, 2_000_000, 5, backend=backend)
    total = Traffic.from_ranks([record for record, _ in run])
    counted = total.bytes_sent()
    assert counted == 2 * 5 * 8_000_000  # two ranks send 2 (p-1)/p of it each, which is all of it
    received = sum(received for _, received in run)
    # nothing is counted that did not travel, nor left out
    assert counted <= received < 1.001 * counted


@pytest.mark.parametrize("backend", ["gloo", "ring", "double_tree"])
def test_a_collective_is_one_event_and_one_call_however_it_is_run(backend):
    def both_ways():
        x = torch.ones(1000)
        ring.all_reduce(x)
        ring.all_reduce(x, async_op=True).wait()
        dist.all_reduce(x)

    run = launch(both_ways, 2, backend=backend, device="cpu", record=True)
    for rank in range(2):
        found = [
            e for e in run.timeline.of(rank=rank, name="all_reduce") if e.lane == "collectives"
        ]
        assert [e.bytes for e in found] == [4000] * 3
        assert run.traffic.calls(rank=rank, operation="all_reduce") == 3
