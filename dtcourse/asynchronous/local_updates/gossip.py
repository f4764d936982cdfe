"""Gossip: no mean over all ranks at all; in each step a rank averages with its neighbours on a graph.

    optimizer = GossipSGD(model, torch.optim.SGD(model.parameters(), lr=0.1), mixing.ring(dist.get_world_size()))
    loss(model(x), y).backward()       # meanwhile the parameters travel
    optimizer.step()

    x_i <- sum_j W[i, j] x_j - lr g_i(x_i)                 both from the values before the step

No rank waits for more than its neighbours, and none sends more than degree * N bytes, however many ranks there are.
News takes several steps to come round (mixing.py: the spectral gap says how many), so ranks differ: by what,
`consensus_distance` measures. The mean of all ranks moves by the mean gradient, as if W were not there.
Source: Lian et al., D-PSGD (NIPS 2017, arXiv 1705.09056), algorithm 1.

Bytes that a rank sends in a step, N bytes of parameters: degree * N, in one message for each neighbour and bucket.
Memory per rank: (1 + degree) * N while messages are under way, which is from a forward to the end of its step; N more
in the step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from dtcourse.asynchronous.local_updates.flat import flattened, write_back
from dtcourse.asynchronous.local_updates.local_optimizer import LocalOptimizer
from dtcourse.asynchronous.local_updates.mixing import Mixing, check_mixing, neighbours, rounds
from dtcourse.collectives import p2p
from dtcourse.parameters.buckets import Bucket
from dtcourse.parameters.replicas import Group

TAG = 1 << 21  # of its messages, apart from a user's own (0, 1, ...) and the collectives'


@dataclass
class Exchange:
    """Parameters on their way: this rank's, those of each rank that it hears from, and what to wait for."""

    mine: list[Bucket]
    theirs: dict[int, list[torch.Tensor]]
    pending: list[dist.Work]

    def wait(self) -> None:
        """Everything has come, and what was sent may be changed."""
        for work in self.pending:
            work.wait()
        self.pending = []


class ForwardBegins:
    """A hook that tells an optimizer, while it lives, that forward begins. A copy of the model has nobody to tell."""

    def __init__(self, optimizer: GossipSGD | None = None) -> None:
        self.optimizer = None if optimizer is None else weakref.ref(optimizer)

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        optimizer = None if self.optimizer is None else self.optimizer()
        if optimizer is not None:
            optimizer.forward_begins()

    def __reduce__(self) -> tuple[type[ForwardBegins], tuple[()]]:
        return ForwardBegins, ()


class GossipSGD(LocalOptimizer):
    """Takes `optimizer`'s steps on each rank, and in each of them a weighted mean with the rank's neighbours.

    model, optimizer: as in LocalOptimizer
    mixing:  a (p, p) doubly stochastic matrix, or a list of them to use in turn (mixing.py has the usual graphs)
    overlap: True, the paper's order: parameters travel from the beginning of forward on, while gradients are
        computed, and the inner step is added to the mean of what they were before it. False: the inner step first,
        then the mean of what came of it, for which the ranks wait. On a complete graph that is DDP

    Raises ValueError for a matrix that is not doubly stochastic or does not bring the ranks together, naming a rank
    that is not reached. With overlap, nothing but `step` may change the parameters from a forward on. Buffers
    (BatchNorm's running statistics) are each rank's own.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        mixing: Mixing,
        *,
        overlap: bool = True,
        group: Group = None,
        init_sync: bool = True,
    ) -> None:
        check_mixing(mixing, dist.get_world_size(group))
        self.mixing, self.overlap = rounds(mixing), overlap
        settings = {"overlap": overlap, "mixing": [w.tolist() for w in self.mixing]}
        super().__init__(model, optimizer, settings, group, init_sync)
        self.rank = dist.get_rank(group)
        self._exchange: Exchange | None = None
        if overlap:
            model.register_forward_pre_hook(ForwardBegins(self))

    def forward_begins(self) -> None:
        """The parameters are what they will be until the step: they can travel."""
        if torch.is_grad_enabled() and self._exchange is None:
            self._exchange = self.start_exchange()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step of the inner optimizer, and the mean with the neighbours."""
        if self.overlap and self._exchange is None:  # no forward has started it
            self._exchange = self.start_exchange()
        with torch.enable_grad():
            loss = self.inner_step(closure)
        exchange = self._exchange or self.start_exchange()
        if self.overlap:
            for bucket, mean in zip(exchange.mine, self.mixed(exchange), strict=True):
                moves = bucket.views(mean.sub_(bucket.buffer()))
                for parameter, move in zip(bucket.parameters(), moves, strict=True):
                    parameter.add_(move)
        else:
            for bucket, mean in zip(exchange.mine, self.mixed(exchange), strict=True):
                bucket.set_buffer(mean)
            write_back(exchange.mine)
        self._exchange = None
        self.steps += 1
        return loss

    def start_exchange(self) -> Exchange:
        """Starts to send the parameters as they are, and to receive the neighbours'."""
        self.check_unchanged()
        mine = flattened(self.parameters)
        sources, destinations = neighbours(self.weights, self.rank)
        theirs = {j: [bucket.empty() for bucket in mine] for j in sources}
        pending = []
        with p2p.operation("gossip"), p2p.batch(self.group):
            for j, buffers in theirs.items():
                pending += [p2p.irecv(b, j, self.group, TAG + n) for n, b in enumerate(buffers)]
            for k in destinations:
                pending += [p2p.isend(b.buffer(), k, self.group, TAG + b.index()) for b in mine]
        return Exchange(mine, theirs, pending)

    def mixed(self, exchange: Exchange) -> list[torch.Tensor]:
        """sum_j W[i, j] x_j, flat, for each bucket; waits until all have come."""
        exchange.wait()
        row = self.weights[self.rank].tolist()
        means = [bucket.buffer() * row[self.rank] for bucket in exchange.mine]
        for j, buffers in exchange.theirs.items():
            for mean, buffer in zip(means, buffers, strict=True):
                mean.add_(buffer, alpha=row[j])
        return means

    @property
    def weights(self) -> torch.Tensor:
        """The matrix of the step that comes."""
        return self.mixing[self.steps % len(self.mixing)]

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Goes on from there; what was on its way is let go."""
        super().load_own_state(state)
        if self._exchange is not None:
            self._exchange.wait()
            self._exchange = None


@torch.no_grad()
def consensus_distance(model: nn.Module, group: Group = None) -> float:
    """How far the ranks' models lie apart: sqrt(1/p sum_r |x_r - mean|^2) over all parameters. The same on every rank.

    A measurement: it sends what gossip saves, 2 (p - 1) / p of the parameters' bytes. All ranks call it.
    """
    size, total = dist.get_world_size(group), torch.zeros((), dtype=torch.float64)
    for bucket in flattened(list(model.parameters())):
        mean = bucket.buffer() / size
        dist.all_reduce(mean, group=group)
        total = total.to(mean.device) + (bucket.buffer() - mean).double().square().sum()
    dist.all_reduce(total, group=group)
    return float((total / size).sqrt())
