"""Remote calls: a parameter server by them, distributed autograd through them, addresses that are taken."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rpc

from dtcourse import launch
from dtcourse.asynchronous.parameter_servers.rpc_parameter_server import (
    RpcParameterServer,
    remote_calls,
    served,
)

pytestmark = pytest.mark.skipif(not rpc.is_available(), reason="this build of PyTorch has no RPC")

STEPS, RATE = 3, 0.1


def built(seed, *sizes):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(*sizes).double()


def batch(step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(5, 4, dtype=torch.float64, generator=generator)
    return x, torch.randn(5, 2, dtype=torch.float64, generator=generator)


def _push_and_pull():
    """Rank 1 alone first: it is one process. Then rank 2 too, whose steps come whenever."""
    rank, model = dist.get_rank(), built(0 if dist.get_rank() == 0 else 9, 4, 2)
    with remote_calls():
        if rank == 0:
            server = RpcParameterServer(model, torch.optim.SGD(model.parameters(), RATE))
            try:
                RpcParameterServer(model, server.optimizer)
            except ValueError as error:
                said = str(error)
            dist.barrier()
            alone = [p.detach().clone() for p in model.parameters()]
            dist.barrier()
            dist.barrier()
            return alone, server.num_updates, said
        server = rpc.remote("rank0", served)
        for turn in ({1}, {1, 2}):
            if rank in turn:
                for step in range(STEPS):
                    with torch.no_grad():
                        for p, new in zip(
                            model.parameters(), server.rpc_sync().pull(), strict=True
                        ):
                            p.copy_(new)
                    model.zero_grad()
                    x, y = batch(step)
                    nn.functional.mse_loss(model(x), y).backward()
                    server.rpc_sync().push([p.grad for p in model.parameters()])
            dist.barrier()
            if turn == {1}:
                dist.barrier()
        return server.is_owner(), server.owner_name()


def test_a_parameter_server_by_remote_calls():
    run = launch(_push_and_pull, 3, timeout=100)
    alone, num_updates, said = run[0]
    assert num_updates == 3 * STEPS and said.startswith("this rank has a server already")
    assert run[1] == run[2] == (False, "rank0")
    model = built(0, 4, 2)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    for got, expected in zip(alone, model.parameters(), strict=True):
        assert torch.allclose(got, expected, rtol=1e-12, atol=1e-14)


def _distributed_autograd():
    """The first layer is rank 0's, the second rank 1's: one graph over both."""
    import torch.distributed.autograd as dist_autograd
    from torch.distributed.optim import DistributedOptimizer

    with remote_calls():
        if dist.get_rank() == 0:
            first = built(0, 4, 3)
            RpcParameterServer(first, torch.optim.SGD(first.parameters(), RATE))
            dist.barrier()
            return [p.detach() for p in first.parameters()], [p.grad for p in first.parameters()]
        server, second = rpc.remote("rank0", served), built(1, 3, 2)
        references = server.rpc_sync().parameter_references()
        references += [rpc.RRef(p) for p in second.parameters()]
        optimizer = DistributedOptimizer(torch.optim.SGD, references, lr=RATE)
        for step in range(STEPS):
            with dist_autograd.context() as context:
                x, y = batch(step)
                hidden = torch.tanh(server.rpc_sync().forward(x))
                loss = nn.functional.mse_loss(second(hidden), y)
                dist_autograd.backward(context, [loss])
                optimizer.step(context)
        dist.barrier()
        return [p.detach() for p in second.parameters()], [p.grad for p in second.parameters()]


def test_backward_goes_through_a_remote_call():
    (first, first_grad), (second, second_grad) = launch(_distributed_autograd, 2)
    assert first_grad == second_grad == [None, None], "gradients are in a context, not in .grad"
    layers = nn.Sequential(built(0, 4, 3), nn.Tanh(), built(1, 3, 2))
    optimizer = torch.optim.SGD(layers.parameters(), RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step)
        nn.functional.mse_loss(layers(x), y).backward()
        optimizer.step()
    for got, expected in zip([*first, *second], layers.parameters(), strict=True):
        assert torch.allclose(got, expected, rtol=1e-12, atol=1e-14)


def _at(addresses):
    said = []
    for address in addresses:
        try:
            with remote_calls(address):
                said.append("accepted")
        except ValueError as error:
            said.append(str(error))
    return said


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_server_address_that_is_taken_is_refused_on_all_ranks():
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        run = launch(_at, 2, [taken, "localhost", "127.0.0.1:99999", None])
    for said in run:
        assert f"rank 0 cannot listen at {taken} (Address already in use)" in said[0]
        assert "an address is \"host:port\", with a port up to 65535; got 'localhost'" in said[1]
        assert "got '127.0.0.1:99999'" in said[2]
        assert said[3] == "accepted"
