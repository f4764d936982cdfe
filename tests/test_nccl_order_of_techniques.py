"""What posts sends and receives outside pipelines runs where they keep NCCL's order, and gives what gloo gives."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.asynchronous import (
    BoundedStaleness,
    GossipSGD,
    ParameterServer,
    ShardServer,
    Synchronous,
    Worker,
    mixing,
)
from dtcourse.collectives import halving_doubling, naive, p2p, pairwise
from dtcourse.sequence_parallel import ring_attention
from tests import nccl_order

STEPS = 3


def exchange():
    """Round a ring in both directions, and with oneself's only neighbour."""
    rank, size = p2p.rank(), p2p.size()
    found = []
    for distance in (1, size - 1, 1):
        x, y = torch.tensor([float(rank)]), torch.empty(1)
        p2p.exchange(x, (rank + distance) % size, y, (rank - distance) % size)
        found += y.tolist()
    return found


def attention():
    torch.manual_seed(p2p.rank())
    q, k, v = (torch.randn(1, 2, 4, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    out = ring_attention(q, k, v)
    out.square().sum().backward()
    return [x.detach().tolist() for x in (out, q.grad, k.grad, v.grad)]


def gossip(overlap):
    torch.manual_seed(0)
    found = []
    for graph in (mixing.ring, mixing.complete, mixing.one_peer_exponential):
        model = nn.Sequential(nn.Linear(3, 2).double(), nn.Linear(2, 2))
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).double()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = GossipSGD(model, sgd, graph(dist.get_world_size()), overlap=overlap)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(
                torch.full((2, 3), 1.0 + dist.get_rank() + step).double()
            ).square().mean().backward()
            optimizer.step()
        found.append(model[0].weight.tolist())
    return found


def server(num_servers, rule):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).double()
    servers = tuple(range(num_servers))
    if dist.get_rank() in servers:
        make = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
        if num_servers == 1:
            ParameterServer(model, make(list(model.parameters())), rule()).serve()
        else:
            shards = ShardServer(model, make, rule(), servers=servers)
            shards.serve()
            shards.collect()
        return model[0].weight.tolist()
    with Worker(model, servers) as worker:
        for step in range(STEPS):
            model.zero_grad()
            model(
                torch.full((2, 3), 1.0 + dist.get_rank() + step).double()
            ).square().mean().backward()
            worker.push()
            worker.pull()
    return model[0].weight.tolist()


def collect():
    """The whole model on every server, from parts that only its own server has."""
    model = nn.Linear(3, 2).double()
    if dist.get_rank() > 1:
        Worker(model, (0, 1)).close()
        return None
    make = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
    shards = ShardServer(model, make, servers=(0, 1))
    with torch.no_grad():
        for shard in shards.shards:
            shard.fill_(1.0 + dist.get_rank())
    shards.collect()
    shards.serve()
    return model.weight.tolist(), model.bias.tolist()


def exchanging_collectives():
    """Those whose ranks send and receive at once in each step."""
    found = []
    x = torch.arange(12.0) + dist.get_rank()
    halving_doubling.all_reduce(x)
    found.append(x.tolist())
    for algorithm in (pairwise, naive):
        x, y = torch.arange(12.0) + 100 * dist.get_rank(), torch.empty(12)
        algorithm.all_to_all_single(y, x)
        found.append(y.tolist())
    return found


CASES = {
    "collectives": (exchanging_collectives,),
    "collect": (collect,),
    "exchange": (exchange,),
    "ring attention": (attention,),
    "gossip, overlapped": (gossip, True),
    "gossip": (gossip, False),
    "parameter server": (server, 1, Synchronous),
    "parameter servers": (server, 2, Synchronous),
    "parameter servers, bounded": (server, 2, lambda: BoundedStaleness(0)),
}


# Several servers, each of which posts a receive when it has been asked: on one stream for the whole group they wait for
# each other, and roles.meet refuses NCCL.
SERVERS = ("parameter servers", "parameter servers, bounded")


def everything(but=()):
    cases = CASES.items()
    return {name: function(*arguments) for name, (function, *arguments) in cases if name not in but}


@pytest.fixture(scope="module", params=[3, 4])
def on_gloo(request):
    return launch(everything, request.param, timeout=120)


@pytest.mark.parametrize("rule", nccl_order.RULES)
def test_what_runs_on_gloo_runs_in_nccl_s_order(on_gloo, rule):
    but = SERVERS if rule == "group" else ()
    run = nccl_order.launch(everything, len(on_gloo), rule, but, timeout=120)
    for rank, (found, expected) in enumerate(zip(run, on_gloo, strict=True)):
        for name, got in found.items():
            if name == SERVERS[-1]:
                torch.testing.assert_close(got, expected[name])
            else:
                assert got == expected[name], (name, rank)


def pair():
    return exchange(), attention(), gossip(True), exchanging_collectives()


@pytest.mark.parametrize("rule", nccl_order.RULES)
def test_two_ranks_which_are_each_other_s_both_neighbours(rule):
    assert list(nccl_order.launch(pair, 2, rule, timeout=120)) == list(launch(pair, 2, timeout=120))
