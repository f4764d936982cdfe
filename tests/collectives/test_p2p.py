"""Send and receive, on torch's groups and on ours."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.collectives import p2p, traffic
from dtcourse.collectives.counted import Traffic
from dtcourse.collectives.transfer import Transfer

GROUPS = ["gloo", "ring"]
DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


def _round_the_ring(dtype, shape):
    """Everybody's tensor travels once round; each rank returns what it saw."""
    rank, size = p2p.rank(), p2p.size()
    x = torch.full(shape, rank, dtype=dtype)
    for _ in range(size):
        y = torch.empty_like(x)
        p2p.exchange(x, (rank + 1) % size, y, (rank - 1) % size)
        x = y
    return torch.equal(x, torch.full(shape, rank, dtype=dtype))


def _all_dtypes_and_shapes():
    shapes = [(), (0,), (1,), (3, 0, 2), (2, 3)]
    return [_round_the_ring(dtype, shape) for dtype in DTYPES for shape in shapes]


@pytest.mark.parametrize("backend", GROUPS)
def test_every_dtype_and_shape(backend):
    for passed in launch(_all_dtypes_and_shapes, 3, backend=backend):
        assert passed == [True] * (5 * len(DTYPES))


def _any_order():
    """Messages of other tags and sizes find their receives, whatever the order in which these were posted."""
    x = [torch.full((n,), float(n)) for n in (1, 2, 3)]
    if p2p.rank() == 0:
        works = [p2p.isend(x[i], 1, tag=tag) for i, tag in ((0, 7), (1, 7), (2, 8))]
        for work in works:
            work.wait()
        p2p.send(torch.tensor([1.0]), 1)  # the same size and tag: in the order of sending
        p2p.send(torch.tensor([2.0]), 1)
        return None
    y = [torch.empty(n) for n in (1, 2, 3)]
    works = [p2p.irecv(y[i], 0, tag=tag) for i, tag in ((2, 8), (1, 7), (0, 7))]
    for work in works:
        work.wait()
    first, second = torch.empty(1), torch.empty(1)
    p2p.recv(first, 0)
    p2p.recv(second, 0)
    return [t.tolist() for t in y], first.item(), second.item()


@pytest.mark.parametrize("backend", GROUPS)
def test_messages_find_their_receives(backend):
    got = launch(_any_order, 2, backend=backend)[1]
    assert got == ([[1.0], [2.0, 2.0], [3.0, 3.0, 3.0]], 1.0, 2.0)


def _in_subgroups():
    rank = dist.get_rank()
    groups = [dist.new_group([0, 2]), dist.new_group([3, 1])]
    mine = groups[rank % 2]
    x, y = torch.tensor([float(rank)]), torch.empty(1)
    p2p.exchange(x, 1 - p2p.rank(mine), y, 1 - p2p.rank(mine), group=mine)
    return p2p.rank(mine), p2p.size(mine), y.item()


@pytest.mark.parametrize("backend", GROUPS)
def test_ranks_are_those_of_the_group(backend):
    got = list(launch(_in_subgroups, 4, backend=backend))
    members = [[0, 2], dist_order(3, 1)]
    for rank in range(4):
        group = members[rank % 2]
        other = group[1 - group.index(rank)]
        assert got[rank] == (group.index(rank), 2, float(other))


def dist_order(*ranks):
    """torch sorts a new group's ranks (use_local_synchronization aside): group ranks follow the global ones."""
    return sorted(ranks)


def _from_threads():
    """Four threads of each rank send and receive at once, each with a tag of its own."""
    other, errors = 1 - p2p.rank(), []

    def talk(tag):
        try:
            for i in range(50):
                x, y = torch.tensor([float(tag * 1000 + i)]), torch.empty(1)
                p2p.exchange(x, other, y, other, tag=tag)
                assert y.item() == tag * 1000 + i
        except BaseException as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(4)]
    with traffic.counting() as counted:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    return errors, counted.messages_sent(), counted.bytes_sent()


@pytest.mark.parametrize("backend", GROUPS)
def test_several_threads_use_one_group(backend):
    for errors, messages, nbytes in launch(_from_threads, 2, backend=backend):
        assert errors == []
        assert (messages, nbytes) == (200, 800)


def _mixed_with_torch():
    """On our groups, torch's own send and receive are the same messages."""
    y = torch.empty(2)
    if p2p.rank() == 0:
        p2p.send(torch.tensor([1.0, 2.0]), 1)
        dist.recv(y, 1)
    else:
        dist.recv(y, 0)
        p2p.send(y + 1, 0)
    return y.tolist()


def test_torchs_own_send_and_receive_meet_ours():
    assert list(launch(_mixed_with_torch, 2, backend="ring")) == [[2.0, 3.0], [1.0, 2.0]]


def _labels():
    other = 1 - p2p.rank()
    x, y = torch.ones(3), torch.empty(3)

    @p2p.operation("swap")
    def swap():
        with p2p.operation("inner"):  # inside another operation: still part of that one
            p2p.exchange(x, other, y, other)

    weight = torch.ones(3, requires_grad=True)
    weight.register_hook(lambda _: swap())
    with traffic.counting() as counted:
        swap()
        weight.sum().backward()
    return counted.record()


def test_messages_are_labelled_with_operation_and_phase():
    total = Traffic.from_ranks(launch(_labels, 2))
    assert total.operations == ["swap"]
    assert total.bytes_sent(rank=0, phase="forward") == 12
    assert total.bytes_sent(rank=0, phase="backward") == 12
    assert total.calls(rank=1, operation="swap") == 2


def test_without_a_group_the_error_says_so():
    with pytest.raises(ValueError, match="no default process group"):
        p2p.rank()


def test_a_rank_loads_nothing_heavy():
    """What form_group imports is torch.distributed and files of this package."""
    code = (
        "import sys, torch, torch.distributed, dtcourse; before = set(sys.modules)\n"
        "from dtcourse.collectives.backend import register; register.register()\n"
        "print(*sorted({m.partition('.')[0] for m in set(sys.modules) - before}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(out.stdout.split()) <= {"dtcourse", "_queue", "queue", "json", "_json", "contextlib"}


@pytest.mark.parametrize("options", [{"backend": "ring"}, {"backend": "gloo", "record": True}])
def test_a_rank_outside_the_group_is_refused_in_torchs_own_calls_too(options):
    """gloo itself ends the process there."""

    def to_nobody():
        for call in (dist.isend, dist.irecv, dist.send, dist.recv):
            with pytest.raises(ValueError, match=r"(dst|src)=7 on rank \d of a group of 2"):
                call(torch.ones(3), 7)

    launch(to_nobody, 2, device="cpu", **options)


def _a_transfer_beside_work():
    """What a rank receives of its left-hand neighbour, and the names under which messages are counted."""
    rank = dist.get_rank()
    sent = (
        torch.full((2, 3), rank),
        torch.full((4,), rank + 0.5),
        torch.full((1,), rank, dtype=torch.double),
    )
    with traffic.counting() as counted:
        moving = Transfer(sent, None, "all_gather")
        with p2p.operation("ring_attention"):
            second = Transfer((sent[1],))
        got = moving.wait()
        (alone,) = second.wait()
    names = ("all_gather", "ring_attention", "transfer")
    return got, alone, [counted.calls(operation=name) for name in names]


def test_a_transfer_takes_any_tensors_one_step_round_the_ring():
    for rank, (got, alone, calls) in enumerate(launch(_a_transfer_beside_work, 3)):
        left = (rank - 1) % 3
        assert [(t.dtype, t.flatten().tolist()) for t in got] == [
            (torch.int64, [left] * 6),
            (torch.float32, [left + 0.5] * 4),
            (torch.double, [left]),
        ]
        assert alone.tolist() == [left + 0.5] * 4
        assert calls == [1, 1, 0]
