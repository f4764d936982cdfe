"""The backend that keeps NCCL's order rule: what hangs on NCCL raises there, and what does not passes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dtcourse.collectives import p2p
from dtcourse.launch import RankFailure
from tests import nccl_order


def both(how: str) -> list[float]:
    """Two neighbours in a ring of ranks send each other their number; what came."""
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    x, y = torch.full((3,), float(rank)), torch.empty(3)
    if how == "batched":
        receive, send = dist.P2POp(dist.irecv, y, left), dist.P2POp(dist.isend, x, right)
        works = dist.batch_isend_irecv([receive, send])
    elif how == "receive first":
        works = [dist.irecv(y, left), dist.isend(x, right)]
    elif how == "send first":
        works = [dist.isend(x, right), dist.irecv(y, left)]
    else:  # in one order that both ends of a pair have: the message from rank 0 before the one to it
        send, receive = (lambda: dist.isend(x, right)), (lambda: dist.irecv(y, left))
        works = [one() for one in ((send, receive) if rank == 0 else (receive, send))]
    for work in works:
        work.wait()
    return y.tolist()


@pytest.mark.parametrize("rule", nccl_order.RULES)
@pytest.mark.parametrize("how", ["batched", "in one order"])
def test_what_nccl_carries_out_passes(rule, how):
    for ranks in (2, 3):
        run = nccl_order.launch(both, ranks, rule, how, timeout=60)
        assert list(run) == [[float((rank - 1) % ranks)] * 3 for rank in range(ranks)]


@pytest.mark.parametrize("how", ["receive first", "send first"])
def test_both_sides_the_same_first_is_a_deadlock_in_a_pair(how):
    with pytest.raises(
        RankFailure, match=r"deadlock by NCCL's order rule: rank .*, which waits for rank"
    ) as caught:
        nccl_order.launch(both, 2, "pair", how, timeout=60)
    word = how.split()[0]
    assert f"rank 0's {word} 0" in str(caught.value) and f"rank 1's {word} 0" in str(caught.value)


@pytest.mark.parametrize("how", ["receive first", "send first"])
def test_with_three_ranks_it_is_one_only_where_the_group_shares_a_stream(how):
    assert nccl_order.launch(both, 3, "pair", how, timeout=60)[0] == [2.0] * 3
    with pytest.raises(RankFailure, match="deadlock by NCCL's order rule"):
        nccl_order.launch(both, 3, "group", how, timeout=60)


def test_a_stream_for_each_direction_lets_both_pass():
    assert nccl_order.launch(both, 2, "direction", "receive first", timeout=60)[0] == [1.0] * 3


def through_p2p(first: str) -> list[float]:
    """The course's own calls, in rings of both ends' order or not; twice, since numbers go on."""
    rank = p2p.rank()
    found = []
    for number in range(2):
        x, y = torch.tensor([10.0 * rank + number]), torch.empty(1)
        calls = {
            "send": lambda x=x: p2p.isend(x, 1 - rank),
            "receive": lambda y=y: p2p.irecv(y, 1 - rank),
        }
        names = ["send", "receive"] if first == "send" or rank == 0 else ["receive", "send"]
        for work in [calls[name]() for name in names]:
            work.wait()
        found += y.tolist()
    return found


def test_our_own_channel_meets_the_rule():
    assert list(nccl_order.launch(through_p2p, 2, "pair", "by rank", timeout=60)) == [
        [10.0, 11.0],
        [0.0, 1.0],
    ]
    with pytest.raises(RankFailure, match="deadlock by NCCL's order rule"):
        nccl_order.launch(through_p2p, 2, "pair", "send", timeout=60)


def a_send_alone() -> bool:
    """Rank 0 sends before rank 1 has posted anything; whether the send was over before that."""
    if dist.get_rank():
        dist.barrier()
        dist.recv(torch.empty(1), 0)
        return False
    work = dist.isend(torch.ones(1), 1)
    over = work.is_completed()
    dist.barrier()
    work.wait()
    return over


def never_received() -> None:
    if dist.get_rank() == 0:
        dist.send(torch.ones(1), 1)


def other_sizes() -> None:
    dist.send(torch.ones(3), 1) if dist.get_rank() == 0 else dist.recv(torch.empty(2), 0)


@pytest.mark.parametrize("rule", nccl_order.RULES)
def test_a_send_is_over_when_it_is_received(rule):
    assert not nccl_order.launch(a_send_alone, 2, rule, timeout=60)[0]
    with pytest.raises(RankFailure, match="rank 0 of 2 raised RuntimeError"):
        nccl_order.launch(never_received, 2, rule, timeout=60)
    with pytest.raises(RankFailure, match="takes 2 elements of 4 bytes, and what comes has 3 of 4"):
        nccl_order.launch(other_sizes, 2, rule, timeout=60)


def mixed() -> None:
    """A batched send does not meet a receive that is not batched: they are on other communicators."""
    x = torch.ones(1)
    if dist.get_rank() == 0:
        dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1)])[0].wait()
    else:
        dist.recv(x, 0)


def test_what_is_batched_meets_only_what_is_batched():
    with pytest.raises(RankFailure, match="deadlock by NCCL's order rule"):
        nccl_order.launch(mixed, 2, "pair", timeout=60)


def collectives() -> list[float]:
    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x)
    part = dist.new_group([0, 1], backend=nccl_order.backend_of("pair"))
    if dist.get_rank() < 2:
        dist.broadcast(x, 0, group=part)
    return x.tolist()


def test_collectives_are_gloos():
    assert list(nccl_order.launch(collectives, 3, "pair", timeout=60)) == [[3.0]] * 3


def test_an_unknown_rule_is_refused():
    with pytest.raises(
        ValueError, match="there is no rule 'fifo'; there are pair, group, direction"
    ):
        nccl_order.backend_of("fifo")
