"""The same by remote calls: torch.distributed.rpc, in which a worker calls a method of an object on another rank.

    with remote_calls():                                   # every rank: "rank0", "rank1", ...
        if dist.get_rank() == 0:
            RpcParameterServer(model, torch.optim.SGD(model.parameters(), lr=0.1))
        else:
            server = rpc.remote("rank0", served)           # a remote reference (RRef): the object stays where it is
            server.rpc_sync().push(gradients)              # its method runs there, in one of RPC's threads
            parameters = server.rpc_sync().pull()

A call takes and returns any tensors and waits for its answer; rpc_async() returns a Future. There is no server loop:
the calls of several workers run at once, so the server holds a lock.

Distributed autograd goes through remote calls. A forward that calls `server.rpc_sync().forward(x)` has a graph on two
ranks; its backward sends gradients the other way, into a context rather than into .grad, since several workers'
backwards may run at once, and DistributedOptimizer steps parameters where they are:

    with dist_autograd.context() as context:
        loss = criterion(head(server.rpc_sync().forward(x)), y)
        dist_autograd.backward(context, [loss])
        optimizer.step(context)      # DistributedOptimizer(SGD, server.rpc_sync().parameter_references() + ..., lr=0.1)

PyTorch keeps RPC as it is and develops it no further. Its messages are not ours: they are neither counted nor emulated.
(Source: PyTorch's documentation, "Distributed RPC Framework", and its tutorials on RPC and on parameter servers.)
"""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rpc

from dtcourse.parameters.agreement import raise_on_all_ranks

_server: RpcParameterServer | None = None
_made = threading.Event()
PATIENCE = 60.0  # seconds in which the server's rank must have made it


@contextmanager
def remote_calls(address: str | None = None) -> Iterator[None]:
    """Remote calls between all ranks of the default group, under the names "rank0", "rank1", ...;
    at the end waits for all.

    address: "host:port" at which rank 0 lets the others find it; None takes a port that is free

    Raises ValueError, on all ranks, for what is no address and for one that is taken already (where torch would wait);
    RuntimeError where this build of PyTorch has no RPC.
    """
    global _server
    if not rpc.is_available():
        raise RuntimeError("this build of PyTorch has no torch.distributed.rpc")
    chosen = [raise_on_all_ranks(lambda: _free_address(address) if dist.get_rank() == 0 else "")]
    dist.broadcast_object_list(chosen, src=0)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://{chosen[0]}")
    rank = dist.get_rank()
    with warnings.catch_warnings(), _own_store():
        warnings.filterwarnings("ignore", "You are using a Backend")  # torch's own call
        rpc.init_rpc(
            f"rank{rank}",
            rank=rank,
            world_size=dist.get_world_size(),
            rpc_backend_options=options,
        )
    try:
        yield
    except BaseException:
        rpc.shutdown(graceful=False)  # who failed waits for nobody
        raise
    else:
        rpc.shutdown()
    finally:
        _server = None
        _made.clear()


@contextmanager
def _own_store() -> Iterator[None]:
    """Has rank 0 listen at the address. Under torchrun and launch it would look for their store there, for ever."""
    said = os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    try:
        yield
    finally:
        if said is not None:
            os.environ["TORCHELASTIC_USE_AGENT_STORE"] = said


def _free_address(address: str | None) -> str:
    host, _, port = (address or f"{os.environ.get('MASTER_ADDR', '127.0.0.1')}:0").rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f'an address is "host:port", with a port up to 65535; got {address!r}')
    with closing(socket.socket()) as free:
        try:
            free.bind((host, int(port)))
        except OSError as error:
            raise ValueError(
                f"rank 0 cannot listen at {address} ({error.strerror or error}): end what has it, or leave the address "
                "out for one that is free"
            ) from None
        return f"{host}:{free.getsockname()[1]}"


class RpcParameterServer:
    """The model of this rank and its optimizer, for remote calls. A rank has one, until its remote calls end.

    Applies each gradient as it comes (asynchronous SGD).
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        global _server
        if _server is not None:
            raise ValueError("this rank has a server already: one for each remote_calls()")
        self.model, self.optimizer = model, optimizer
        self.num_updates = 0
        self._lock = threading.Lock()
        _server = self
        _made.set()

    def push(self, gradients: Sequence[torch.Tensor | None]) -> int:
        """Takes a step with gradients in the order of model.parameters(). Returns the updates made so far."""
        parameters = list(self.model.parameters())
        if len(gradients) != len(parameters):
            raise ValueError(f"{len(gradients)} gradients for {len(parameters)} parameters")
        with self._lock:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            self.optimizer.step()
            self.num_updates += 1
            return self.num_updates

    def pull(self) -> list[torch.Tensor]:
        """Copies of the parameters."""
        with self._lock:
            return [p.detach().clone() for p in self.model.parameters()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The model's output: a part of the caller's graph, inside a context of distributed autograd."""
        return self.model(x)

    def parameter_references(self) -> list[rpc.RRef]:
        """A remote reference to each parameter, for DistributedOptimizer."""
        return [rpc.RRef(p) for p in self.model.parameters()]


def served() -> RpcParameterServer:
    """This rank's server; waits until it is made. To be called from elsewhere: rpc.remote("rank0", served)."""
    if not _made.wait(PATIENCE):
        raise RuntimeError(f"this rank has made no RpcParameterServer in {PATIENCE:g} s")
    assert _server is not None, "it has been made"
    return _server
