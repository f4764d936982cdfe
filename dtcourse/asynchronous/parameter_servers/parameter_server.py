"""A parameter server: one rank holds the model, the others compute gradients for it.

    model = MLP(...)                                              # on all ranks
    if dist.get_rank() == 0:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)   # here alone
        report = ParameterServer(model, optimizer, Asynchronous()).serve()
    else:
        with Worker(model) as worker:                             # worker.py
            for x, y in batches:
                model.zero_grad()
                loss(model(x), y).backward()
                worker.push()                                     # the gradient goes to the server
                worker.pull()                                     # its parameters come back

The model and the optimizer stay as they are. When the server updates, and whom it lets wait, is its rule
(update_rules.py). The idea is that of DistBelief (Dean et al., NeurIPS 2012) and of Li et al. (OSDI 2014).

Bytes in a step, for p workers and a model of B bytes: a worker sends B + 16 in two messages and receives B in one; the
server receives p (B + 16) and sends p B. So its link is what the step waits for; sharded_parameter_server.py mends
that. At the end each worker sends 16 bytes more. Memory besides the model: 2 B a worker; at the server (2 p + 1) B at
most, and the optimizer's.

A worker that dies is noticed by its connection: the server warns, names it in its report and goes on with the others
(launch(..., on_failure="continue") lets it). On our own backends ("ring", ...) a failure ends the whole group; use
gloo.
"""

from __future__ import annotations

import torch
from torch import nn

from dtcourse.asynchronous.parameter_servers.links import Link
from dtcourse.asynchronous.parameter_servers.roles import Roles, flat_buckets, meet
from dtcourse.asynchronous.parameter_servers.serving import FlatServer
from dtcourse.asynchronous.parameter_servers.update_rules import Synchronous, UpdateRule
from dtcourse.parameters.replicas import Group


class ParameterServer(FlatServer):
    """The rank that holds the model. All ranks of the group make their part at the same time: this one, or a Worker.

    model:     starts as it is here, on all ranks; buffers (running means) stay each worker's own after that
    optimizer: any of torch.optim, over model's parameters
    rule:      Synchronous() if None; see update_rules.py
    server:    this rank of the group

    Raises ValueError for a rank that is not this one, where there is no worker, where ranks have built different
    models, and for an optimizer that does not have all parameters that train.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        rule: UpdateRule | None = None,
        server: int = 0,
        group: Group = None,
    ) -> None:
        rule = Synchronous() if rule is None else rule

        def check(roles: Roles) -> None:
            rule.check(len(roles.workers))
            held = {p for each in optimizer.param_groups for p in each["params"]}
            names = [n for n, p in model.named_parameters() if p.requires_grad and p not in held]
            if names:
                raise ValueError(
                    f"the optimizer does not have {', '.join(names)}: make it of model.parameters(), and of this model"
                )

        roles = meet(model, server, group, as_server=True, check=check)
        super().__init__(flat_buckets(model), optimizer, rule, roles.workers, Link(group))
        self.model = model
