"""ZeRO-2: each gradient goes to its owner while backward runs, and the other ranks free it at once.

    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    model = ShardedDataParallel(model, optimizer)
    loss(model(x), y).backward()      # the mean gradients, each on its owner; None elsewhere
    optimizer.step()

Only the owner updates a parameter (zero1.py), so only the owner needs its gradient. A hook copies each gradient into a
bucket that goes to one owner, and drops it; a full bucket is reduced in the background, and freed on all ranks but its
owner when it has arrived. Source: Rajbhandari et al., ZeRO (SC 2020, arXiv 1910.02054), stage P_os+g.

A rank holds gradients of N_r elements, those it owns, and while backward runs some buckets more: one that fills, and
two that are under way.
All ranks together send (p - 1) N elements of gradients and (p - 1) N of parameters in a step: no more than DDP. In
seconds (exchange.py says why) each of the two passes takes N elements' time at one port, where DDP's take (p - 1)/p N.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse import events
from dtcourse.parameters.backward import (
    check_only_wrapper,
    check_same_parameters,
    on_backward,
    weakly,
)
from dtcourse.parameters.buckets import Bucket
from dtcourse.parameters.cuts import Owners
from dtcourse.parameters.placement import place_gradients
from dtcourse.parameters.plain_replica import require_all_here, require_outermost
from dtcourse.parameters.reducer import Reducer
from dtcourse.parameters.replicas import broadcast_model, broadcast_tensors
from dtcourse.parameters.slices import require_replicas
from dtcourse.parameters.unused import UsedParameters
from dtcourse.parameters.wrapper import Wrapper
from dtcourse.sharding.exchange import Pieces, in_pieces
from dtcourse.sharding.partition import in_buckets
from dtcourse.sharding.zero1 import ZeroRedundancyOptimizer


class ShardedDataParallel(Wrapper):
    """Wraps `module` so that backward leaves the mean of all ranks' gradients on each parameter's owner alone.

    module:                 the same on every rank but for its values, which become rank 0's
    optimizer:              the ZeroRedundancyOptimizer of its parameters; says who owns what
    bucket_cap_mb:          MiB of gradients that travel together
    find_unused_parameters: a parameter without a gradient on this rank counts as zero (the others may have one), at the
                            cost of one small all-reduce a step; without it, such a parameter raises an error
    broadcast_buffers:      before each forward in training, give every rank rank 0's buffers; False: each has its own

    Each backward reduces and adds to what the owner has: micro-batches cost one reduction each, and never more memory.
    Backwards inside no_sync() keep whole gradients on each rank (N elements, not N_r) and the next one outside sends
    their sum: one reduction for all. To clip, parameters.clipping.clip_grad_norm(model, max_norm) asks the owners:
    torch's clip_grad_norm_ would take the owner's norm for the whole one, as its GradScaler would take the owner's
    overflow (memory.GradScaler(group=...) asks all).

    Raises ValueError for another kind of optimizer, one that lacks a parameter, or one of other ranks' making.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: ZeroRedundancyOptimizer,
        bucket_cap_mb: float = 25.0,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(optimizer, ZeroRedundancyOptimizer):
            raise ValueError(
                f"{type(optimizer).__name__} keeps the states of all parameters on every rank: build the optimizer as "
                f"ZeroRedundancyOptimizer(model.parameters(), {type(optimizer).__name__}, ...)"
            )
        if not bucket_cap_mb > 0:
            raise ValueError(f"a bucket holds more than 0 MiB; got bucket_cap_mb={bucket_cap_mb}")
        self.module, self.optimizer = module, optimizer
        self.process_group = optimizer.process_group
        self.rank, self.world_size = optimizer.rank, optimizer.world_size
        self.find_unused_parameters = find_unused_parameters
        self.broadcast_buffers = broadcast_buffers
        self._check_parameters()
        require_all_here(
            module, type(self).__name__, "Wrap its stages, before the pipeline is made"
        )
        require_replicas(module.named_parameters(), self.process_group, type(self).__name__)
        broadcast_model(module, group=self.process_group, buffers=broadcast_buffers)
        names: dict[torch.Tensor, str] = {
            p: n for n, p in module.named_parameters() if p.requires_grad
        }
        used = UsedParameters(
            list(names), find_unused_parameters, static=False, group=self.process_group
        )
        self.reducer = OwnerReducer(names, optimizer, int(bucket_cap_mb * (1 << 20)), used)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Runs the wrapped module."""
        reducer = self.reducer
        if torch.is_grad_enabled():
            require_outermost(type(self).__name__)
            self._check_parameters()
            check_same_parameters(self.module, reducer.names)
            if not reducer.order:  # it has not had a backward yet
                check_only_wrapper(reducer, reducer.names)
            reducer.forget_failed_backward()
            reducer.rebuild()
            if self.broadcast_buffers and self.module.training and self.require_backward_grad_sync:
                broadcast_tensors(self.module.buffers(), group=self.process_group)
        output = self.module(*inputs, **keywords)
        if torch.is_grad_enabled():
            on_backward(output, partial(reducer.backward_begins, local=False))
        return output

    @property
    def require_backward_grad_sync(self) -> bool:  # type: ignore[override]
        """Whether backwards reduce; False inside no_sync()."""
        return self.reducer.synchronises

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, value: bool) -> None:
        self.reducer.synchronises = value

    def _check_parameters(self) -> None:
        """Raises ValueError if a parameter of the module is not (or no more) one that the optimizer knows."""
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad and parameter not in self.optimizer.owner:
                raise ValueError(
                    f"{name} is not among the optimizer's parameters: freeze it, pass it to the optimizer, or, if "
                    "the module was changed since, build the optimizer and the wrapper again"
                )


class OwnerReducer(Reducer):
    """Leaves the mean of all ranks' gradients on each parameter's owner alone.

    names:        {parameter: name} of those that are trained
    optimizer:    says who owns what
    bucket_bytes: of gradients that travel together; twice as many are under way at most

    A gradient leaves .grad when it is copied into its bucket, and a bucket has memory from its first gradient until it
    has arrived, on its owner until the next zero_grad: its views are the gradients.
    """

    if_twice = "As where reentrant checkpoints share a parameter: pass use_reentrant=False to them."
    if_missing = "Pass find_unused_parameters=True, or freeze them"

    def __init__(
        self,
        names: dict[torch.Tensor, str],
        optimizer: ZeroRedundancyOptimizer,
        bucket_bytes: int,
        used: UsedParameters,
    ) -> None:
        self.rank = optimizer.rank
        # Decided when a gradient comes: a forward may have several backwards.
        self.synchronises = True
        assign = partial(in_buckets, owner=optimizer.owner.__getitem__, bucket_bytes=bucket_bytes)
        super().__init__(
            names, optimizer.process_group, None, assign, used, gradient_as_bucket_view=False
        )
        self.bytes_under_way = 2 * bucket_bytes
        self.owners_of = optimizer.owners
        place_gradients(self.parameters, self)
        for parameter in self.parameters:
            parameter.register_hook(partial(weakly(self.before_gradient), parameter))

    def owners(self, parameter: torch.Tensor) -> Owners | None:
        """On which rank its gradient is. Raises ValueError while it is a sum of this rank's own ones."""
        if any(p.grad is not None for p in self.local):
            raise ValueError(
                "gradients are this rank's own since no_sync(), and not averaged: run the last backward of the step "
                "outside it before norms, clipping or whole gradients"
            )
        return self.owners_of(parameter)

    def start_pass(self, unused: Iterable[torch.Tensor] = ()) -> None:
        """Nothing is under way: no bucket has memory."""
        super().start_pass(unused)
        for bucket in self.buckets:
            bucket.release()
        self.expects_backward = True  # each backward reduces
        self.means: dict[torch.Tensor, torch.Tensor] = {}  # of earlier backwards

    def forget_failed_backward(self) -> None:
        """A forward begins. What a backward that failed half-way has left is no part of the next one."""
        self.backward.end_awaited = False
        if self.backward.arrivals or self.means:
            self.start_pass()

    def before_gradient(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Before a new gradient is added to .grad: a mean of earlier micro-batches is not to be averaged again."""
        if parameter.grad is None or parameter in self.local:
            return
        if self.synchronises:
            self.set_aside(parameter)
        else:  # from here on .grad is this rank's share of a sum, to be divided by the number of ranks
            parameter.grad *= self.divide_by
            self.local.add(parameter)

    def reduces(self) -> bool:
        return self.synchronises

    def set_aside(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None and parameter not in self.local:
            self.means[parameter] = parameter.grad
            parameter.grad = None

    def copied(self, parameter: torch.Tensor) -> None:
        parameter.grad = None

    def send(self, bucket: Bucket) -> Pieces:
        """Starts to add a full bucket up on its owner, in pieces: the hops to one root overlap."""
        to_owner = partial(dist.reduce, group=self.group, group_dst=bucket.owner, async_op=True)
        return in_pieces(bucket.buffer(), dist.get_world_size(self.group), to_owner)

    def arrived(self, bucket: Bucket, result: Any) -> None:
        """A bucket is through. Its owner keeps it, as the gradients; the others free it."""
        if bucket.owner != self.rank:
            bucket.release()
            events.instant("free gradients", "memory", bytes=bucket.nbytes)

    def hand_out(self, used: set[torch.Tensor]) -> None:
        """All is through: shows the owner's gradients."""
        for bucket in self.buckets:
            if bucket.owner != self.rank:
                continue
            for parameter, mean in zip(bucket.parameters(), bucket.gradients(), strict=True):
                if parameter in self.means:
                    mean += self.means[parameter]
                if parameter in used or parameter in self.means:
                    parameter.grad = mean
