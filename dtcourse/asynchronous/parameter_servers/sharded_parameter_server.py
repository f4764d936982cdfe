"""A sharded parameter server: many servers, each with an equal part of the model (Li et al., OSDI 2014).

    servers = (0, 1)
    if dist.get_rank() in servers:
        server = ShardServer(model, lambda parameters: torch.optim.SGD(parameters, lr=0.1), servers=servers)
        report = server.serve()
        server.collect()                          # the whole model, on every server
    else:
        with Worker(model, servers) as worker:    # worker.py: cuts what it pushes, puts together what it pulls

One server's link carries 2 p B bytes in a step, so workers wait for it, and the more of them there are the longer. Of S
servers each carries 2 p B / S. Every server has its own rule and counts its own versions: where arrival decides, a
worker may get an older part from one than from another.

The parts are cut from all parameters laid end to end, by size and whatever tensor they belong to. So each server's
optimizer steps one flat tensor (a dtype): right for what looks at each number by itself (SGD, Adam), not for what looks
at a tensor's norm or shape (LARS, LAMB, Adafactor), which needs the central server.

Bytes in a step, p workers, S servers, B bytes: `bytes_per_step`. Memory of a server: the central one's over S, apart
from the model itself, which it holds for its shape only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.asynchronous.parameter_servers.links import Link
from dtcourse.asynchronous.parameter_servers.roles import (
    HEADER_BYTES,
    PULL,
    Roles,
    flat_buckets,
    meet,
    part,
)
from dtcourse.asynchronous.parameter_servers.serving import FlatServer
from dtcourse.asynchronous.parameter_servers.update_rules import Synchronous, UpdateRule
from dtcourse.collectives import p2p
from dtcourse.parameters.buckets import assign
from dtcourse.parameters.replicas import Group


class ShardServer(FlatServer):
    """One of several servers. All ranks of the group make their part at the same time: this, or a Worker.

    make_optimizer: [flat parameters] -> an optimizer of torch.optim over them
    rule:           Synchronous() if None; one object a server
    servers:        ranks of the group, of which this is one; the first one's model is where training starts
    link:           where a worker on this rank uses it too (colocated.py)

    Raises ValueError as ParameterServer does.
    """

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        rule: UpdateRule | None = None,
        servers: Sequence[int] = (0,),
        group: Group = None,
        link: Link | None = None,
    ) -> None:
        rule = Synchronous() if rule is None else rule

        def check(roles: Roles) -> None:
            rule.check(len(roles.workers))

        roles = meet(model, servers, group, as_server=True if link is None else None, check=check)
        self.model, self._servers = model, roles.servers
        self._me = roles.servers.index(dist.get_rank(group))
        shards = [
            nn.Parameter(part(_flat(bucket.parameters()), self._me, len(servers)).clone())
            for bucket in flat_buckets(model)
        ]
        self.shards = shards
        super().__init__(
            [b for shard in shards for b in assign([shard])],
            make_optimizer(shards),
            rule,
            roles.workers,
            Link(group) if link is None else link,
        )

    def collect(self) -> nn.Module:
        """The whole model, with every server's parameters as they are now. All servers call it, and no worker.

        Each of S servers sends its part to the S - 1 others.
        """
        for bucket, shard in zip(flat_buckets(self.model), self.shards, strict=True):
            whole, mine = bucket.empty(), shard.detach()
            parts = [part(whole, i, len(self._servers)) for i in range(len(self._servers))]
            parts[self._me].copy_(mine)
            others = [(i, rank) for i, rank in enumerate(self._servers) if i != self._me]
            with p2p.operation("collect"):
                with p2p.batch(self.link.group):
                    works = [self.link.irecv(parts[i], rank, PULL) for i, rank in others]
                    works += [self.link.isend(mine, rank, PULL) for _, rank in others]
                for work in works:
                    work.wait()
            with torch.no_grad():
                for parameter, view in zip(bucket.parameters(), bucket.views(whole), strict=True):
                    parameter.copy_(view)
        return self.model


@dataclass(frozen=True)
class StepBytes:
    """Bytes that a rank sends and receives in a step.

    worker_sent, worker_received: of each worker
    server_sent, server_received: of the server with the largest part
    """

    worker_sent: int
    worker_received: int
    server_sent: int
    server_received: int


def bytes_per_step(
    num_elements: int, element_size: int, num_workers: int, num_servers: int = 1
) -> StepBytes:
    """What a parameter server's step costs on the wire, for a model of num_elements numbers of element_size bytes.

    Every worker pushes its gradient once and pulls the parameters once; each part has a header of 16 bytes on its way
    to the server. ValueError where there is no worker or no server.
    """
    if num_workers < 1 or num_servers < 1:
        raise ValueError(f"at least a worker and a server; got {num_workers} and {num_servers}")
    nbytes, largest = num_elements * element_size, -(-num_elements // num_servers) * element_size
    return StepBytes(
        worker_sent=nbytes + num_servers * HEADER_BYTES,
        worker_received=nbytes,
        server_sent=num_workers * largest,
        server_received=num_workers * (largest + HEADER_BYTES),
    )


def _flat(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in parameters])
