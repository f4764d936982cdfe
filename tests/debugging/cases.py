"""Hangs with one planted cause each. All three ranks run a case; `odd` does something else where the text says so."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from tests.debugging.hanging import stay

ODD = 2


def odd():
    return dist.get_rank() == ODD


def other_order(g):
    x, y = torch.ones(4), torch.zeros(6)
    if odd():
        dist.reduce(y, 0, group=g)
        dist.all_reduce(x, group=g)
    else:
        dist.all_reduce(x, group=g)
        dist.reduce(y, 0, group=g)


# Of so many bytes that gloo cuts both into messages of one size, and only their number differs. Where a message is
# longer than what it is received in, gloo ends the process, and there is no hang.
MEBI = 2**20


def other_shape(g):
    x = torch.ones((6 if odd() else 3) * MEBI)
    dist.all_reduce(x, group=g)


def other_dtype(g):
    x = torch.ones(3 * MEBI, dtype=torch.float64 if odd() else torch.float32)
    dist.all_reduce(x, group=g)


def other_root(g):
    dist.broadcast(torch.ones(4), src=dist.get_rank() % 2, group=g)
    dist.barrier(g)


def leaves_early(g):
    for step in range(3):
        if odd() and step == 2:
            return
        dist.all_reduce(torch.ones(4), group=g)


def leaves_one_out(g):
    for step in range(3):
        if not (odd() and step == 1):
            dist.all_reduce(torch.ones(2), group=g)
        dist.all_reduce(torch.ones(2), group=g)


def is_elsewhere(g):
    if odd():
        stay()
    dist.barrier(g)


def wrong_group(g, pair):
    x = torch.ones(4)
    if odd():
        dist.all_reduce(x, group=pair)
    else:
        dist.all_reduce(x, group=g)


def _pair():
    return [dist.new_group([0, 2])]


wrong_group.groups = _pair


def all_send_first(g):
    rank, ranks = dist.get_rank(), 3
    x, y = torch.ones(4), torch.zeros(4)
    dist.send(x, (rank + 1) % ranks, group=g)
    dist.recv(y, (rank - 1) % ranks, group=g)


def all_receive_first(g):
    rank, ranks = dist.get_rank(), 3
    x, y = torch.ones(4), torch.zeros(4)
    dist.recv(y, (rank - 1) % ranks, group=g)
    dist.send(x, (rank + 1) % ranks, group=g)


def other_tag(g):
    if dist.get_rank() == 0:
        dist.send(torch.ones(4), 1, group=g, tag=5)
    elif dist.get_rank() == 1:
        dist.recv(torch.ones(4), 0, group=g, tag=6)


def nobody_sends(g):
    if dist.get_rank() == 0:
        dist.recv(torch.ones(4), ODD, group=g)
    elif odd():
        stay()


def another_receives_meanwhile(g):
    """Rank 1's receive has the number of the barrier that rank 0 waits in, and is no part of it."""
    if odd():
        stay()
    elif dist.get_rank() == 1:
        time.sleep(0.1)
        dist.recv(torch.ones(4), ODD, group=g)
    dist.barrier(g)


def ddp_with_a_skipped_backward(g):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4), process_group=g)
    loss = model(torch.ones(2, 4)).sum()
    if not odd():
        loss.backward()


def asynchronous(g):
    work = dist.all_reduce(torch.ones(4), group=g, async_op=True)
    other = None if odd() else dist.all_reduce(torch.ones(5), group=g, async_op=True)
    work.wait()
    if other is not None:
        other.wait()


CASES = {
    f.__name__: f
    for f in (
        other_order,
        other_shape,
        other_dtype,
        other_root,
        leaves_early,
        leaves_one_out,
        is_elsewhere,
        wrong_group,
        all_send_first,
        all_receive_first,
        other_tag,
        nobody_sends,
        another_receives_meanwhile,
        ddp_with_a_skipped_backward,
        asynchronous,
    )
}


def trains(g):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4), process_group=g)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
    rank = dist.get_rank()
    work = dist.isend(torch.ones(2), (rank + 1) % 3, group=g)
    dist.recv(torch.ones(2), (rank - 1) % 3, group=g)
    work.wait()
    dist.all_reduce(torch.ones(4), group=g, async_op=True).wait()
    dist.barrier(g)
