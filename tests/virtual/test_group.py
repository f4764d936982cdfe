"""One rank's end of a group without the others: what it counts, and what it answers."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import launch, torch_private
from dtcourse.collectives import decisions, p2p, traffic
from dtcourse.collectives.backend import virtual
from dtcourse.parameters import agreement
from dtcourse.torch_private import without_values

ON_CPU = torch.device("cpu")


def exchange():
    """Each kind of call that techniques make, once; what was counted of it."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    rows, columns = mesh.get_group("rows"), mesh.get_group("columns")
    here, there = p2p.rank(rows), 1 - p2p.rank(rows)
    with traffic.counting() as counted:
        dist.all_reduce(torch.zeros(6), group=rows)
        torch_private.all_gather_single(torch.zeros(8), torch.zeros(4), group=columns)
        work = torch_private.reduce_scatter_single(
            torch.zeros(4), torch.zeros(8), group=columns, async_op=True
        )
        work.wait()
        dist.broadcast(torch.zeros(3), group=rows, group_src=0)
        parts = [torch.zeros(5), torch.zeros(5)] if here == 0 else None
        dist.scatter(torch.zeros(5), parts, group=rows, group_src=0)
        dist.all_to_all_single(torch.zeros(4, 2), torch.zeros(4, 2), group=columns)
        with p2p.operation("ring"):
            p2p.exchange(torch.zeros(7), there, torch.zeros(7), there, rows)
        with traffic.phase("step"):
            dist.barrier(group=rows)
    return sorted(counted.rows), sorted(counted.call_counts.items())


@pytest.mark.parametrize("rank", range(4))
def test_a_virtual_ranks_traffic_is_a_real_ones(rank):
    run = launch(exchange, 4, record=True)
    with virtual.group(rank, 4), without_values():
        assert exchange() == run[rank]


def test_calls_say_their_groups_and_axes():
    with virtual.group(5, 8) as calls, without_values():
        mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
        dist.all_reduce(torch.zeros(4, dtype=torch.double), group=mesh.get_group("dp"))
        dist.all_reduce(torch.zeros(4), group=mesh.get_group("tp"))
    assert calls == [
        virtual.Call("all_reduce", 32, (1, 3, 5, 7), "dp", "forward"),
        virtual.Call("all_reduce", 16, (4, 5), "tp", "forward"),
    ]


def test_numbers_are_answered_as_if_all_ranks_had_passed_them():
    with virtual.group(3, 1024), without_values():
        count = torch.tensor(5).double()
        dist.all_reduce(count)
        assert count.item() == 5 * 1024
        assert agreement.smallest(7, None, ON_CPU) == 7
        assert agreement.on_any_rank([True, False], None, ON_CPU) == [True, False]
        assert agreement.all_equal([1, 2], None, ON_CPU)
        gathered = torch.zeros(2048, dtype=torch.int64)
        torch_private.all_gather_single(gathered, torch.tensor([4, 9]))
        assert gathered[:4].tolist() == [4, 9, 4, 9]


def test_agreement_is_answered_at_once_for_a_hundred_thousand_ranks():
    with virtual.group(3, 100_000), without_values():
        assert agreement.raise_on_all_ranks(lambda: "went on") == "went on"
        agreement.check_agreed({"period": 4}, None, "")
        with pytest.raises(ZeroDivisionError):
            agreement.raise_on_all_ranks(lambda: 1 / 0)


def test_what_nobody_can_answer_is_refused():
    with virtual.group(0, 2), without_values():
        with pytest.raises(ValueError, match="nobody is there to send them"):
            dist.scatter(torch.zeros(2, dtype=torch.int64), [torch.zeros(2, dtype=torch.int64)] * 2)
        with pytest.raises(ValueError, match="reduces numbers by SUM"):
            dist.all_reduce(torch.tensor(3), op=dist.ReduceOp.PRODUCT)


def test_a_message_is_posted_and_a_real_one_is_zeros():
    with virtual.group(0, 2), without_values():
        numbers = torch.full((3,), 9)
        p2p.recv(numbers, 1)
        assert numbers.tolist() == [0, 0, 0]
        p2p.send(torch.zeros(3), 1)


@pytest.mark.parametrize("early", [True, False])
def test_an_asynchronous_call_is_over_early_or_when_it_is_waited_for(early):
    with virtual.group(0, 2, early=early), without_values():
        work = dist.all_reduce(torch.zeros(3), async_op=True)
        assert work.is_completed() is early
        work.wait()
        assert work.is_completed()


def test_a_process_is_one_rank_at_a_time_and_none_afterwards():
    hook = sys.excepthook
    with virtual.group(0, 2):
        assert decisions.is_virtual(None)
        with pytest.raises(ValueError, match="is a rank already"), virtual.group(0, 2):
            pass
    assert not dist.is_initialized() and sys.excepthook is hook
    with pytest.raises(ValueError, match="no rank 2 of 2"), virtual.group(2, 2):
        pass
    with pytest.raises(KeyError), virtual.group(1, 3):
        raise KeyError
    assert not dist.is_initialized()
