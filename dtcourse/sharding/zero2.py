"""ZeRO-2: each gradient goes to its owner while backward runs, and the other ranks free it at once.

    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    model = ShardedDataParallel(model, optimizer)
    loss(model(x), y).backward()      # the mean gradients, each on its owner; None elsewhere
    optimizer.step()

Only the owner updates a parameter (zero1.py), so only the owner needs its gradient. A hook copies each gradient into a
bucket that goes to one owner, and drops it; a full bucket is reduced in the background, and freed on all ranks but its
owner when it has arrived. Source: Rajbhandari et al., ZeRO (SC 2020, arXiv 1910.02054), stage P_os+g.

A rank holds gradients of N_r elements, those it owns, and while backward runs some buckets more: one that fills, and two
that are under way.
All ranks together send (p - 1) N elements of gradients and (p - 1) N of parameters in a step: no more than DDP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable

from dtcourse import events
from dtcourse.sharding.partition import in_buckets
from dtcourse.sharding.zero1 import ZeroRedundancyOptimizer


class ShardedDataParallel(nn.Module):
    """Wraps `module` so that backward leaves the mean of all ranks' gradients on each parameter's owner alone.

    module:                 the same on every rank but for its values, which become rank 0's
    optimizer:              the ZeroRedundancyOptimizer of its parameters; says who owns what
    bucket_cap_mb:          MiB of gradients that travel together
    find_unused_parameters: a parameter without a gradient on this rank counts as zero (the others may have one), at the
                            cost of one small all-reduce a step; without it, such a parameter raises an error
    broadcast_buffers:      before each forward in training, give every rank rank 0's buffers

    Each backward reduces and adds to what the owner has: micro-batches cost one reduction each, and never more memory.
    Backwards inside no_sync() keep whole gradients on each rank (N elements, not N_r) and the next one outside sends
    their sum: one reduction for all. To clip, add up the squares of all ranks' norms first (large_batch.clipping does,
    with sharded=model.parameters()).

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
        self.require_backward_grad_sync = True
        self._bucket_bytes = int(bucket_cap_mb * (1 << 20))
        self._trained: list[torch.Tensor] = [p for p in module.parameters() if p.requires_grad]
        self._names: dict[torch.Tensor, str] = {p: name for name, p in module.named_parameters()}
        self._under_way = False  # a backward is
        self._check_parameters()
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, group=self.process_group, group_src=0)

        # The best guess before the first backward: gradients become ready in the reverse of the order of definition.
        self._plan(list(reversed(self._trained)))
        self._planned_for_good = False
        self._order: list[torch.Tensor] = []  # in which gradients became ready, once known
        self._local: set[torch.Tensor] = set()  # .grad is this rank's own, from inside no_sync
        self._start_anew()
        for parameter in self._trained:
            parameter.register_hook(partial(self._set_aside, parameter))
            parameter.register_post_accumulate_grad_hook(self._gradient_is_ready)

    # --- forward --------------------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Runs the wrapped module."""
        if torch.is_grad_enabled():
            self._check_parameters()
            if self._under_way:  # a backward that failed half-way left its buckets
                self._start_anew()
            self._plan_once()
            if self.broadcast_buffers and self.module.training:
                with torch.no_grad():
                    for buffer in self.module.buffers():
                        dist.broadcast(buffer, group=self.process_group, group_src=0)
        return self.module(*inputs, **keywords)

    # --- backward -------------------------------------------------------------------------------------------

    def _set_aside(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Before a new gradient is added to .grad: a mean of earlier micro-batches is not to be averaged again."""
        if parameter.grad is None or parameter in self._local:
            return
        if not self.require_backward_grad_sync:
            raise RuntimeError(
                f"{self._names[parameter]} has a gradient that is averaged already, and no_sync() would add this rank's "
                "own to it: call zero_grad() before the micro-batches, and leave no_sync() for the last one"
            )
        self._kept[parameter] = parameter.grad
        parameter.grad = None

    def _gradient_is_ready(self, parameter: torch.Tensor) -> None:
        """The hook: backward has finished this parameter's gradient."""
        if not self.require_backward_grad_sync:
            self._local.add(parameter)
            return
        if not self._under_way:
            self._under_way = True
            Variable._execution_engine.queue_callback(self._finish_backward)
        self._fill(parameter, parameter.grad)

    def _fill(self, parameter: torch.Tensor, gradient: torch.Tensor | None) -> None:
        """Copies a gradient into its bucket, drops it, and sends all buckets whose turn it is."""
        if gradient is not None and gradient.layout != torch.strided:
            raise ValueError(
                f"{self._names[parameter]} has a sparse gradient, and its owner takes dense ones: build the embedding "
                "with sparse=False"
            )
        number, slot = self._place[parameter]
        if number not in self._flat:
            self._flat[number] = self._buckets[number].empty()
        view = self._buckets[number].views(self._flat[number])[slot]
        if gradient is None:
            view.zero_()
        else:
            torch.mul(gradient, 1.0 / self.world_size, out=view)
        parameter.grad = None
        self._local.discard(parameter)
        self._ready.append(parameter)
        self._missing[number] -= 1
        while self._next < len(self._buckets) and self._missing[self._next] == 0:
            self._send(self._next)
            self._next += 1

    def _send(self, number: int) -> None:
        bucket, flat = self._buckets[number], self._flat[number]
        work = dist.reduce(flat, group=self.process_group, group_dst=bucket.owner, async_op=True)
        self._sent.append((number, work))
        while sum(self._buckets[n].nbytes for n, _ in self._sent) > 2 * self._bucket_bytes:
            if len(self._sent) == 1:
                break  # one parameter larger than all buckets: nothing to wait for yet
            self._arrived()

    def _arrived(self) -> None:
        """Waits for the oldest bucket under way. Its owner keeps it, as the gradients; the others free it."""
        number, work = self._sent.popleft()
        work.wait()
        if self._buckets[number].owner != self.rank:
            del self._flat[number]
            events.instant("free gradients", "memory", bytes=self._buckets[number].nbytes)

    def _finish_backward(self) -> None:
        """Backward is over: send what is left, wait for all, and show the owners' gradients."""
        ready = set(self._ready)
        unused = [p for p in self._trained if p not in ready]
        if unused and not self.find_unused_parameters:
            raise RuntimeError(
                f"this backward gave no gradient to {', '.join(self._names[p] for p in unused)}: the loss does not depend "
                "on them on this rank. Pass find_unused_parameters=True, or freeze them with requires_grad_(False)."
            )
        if not self.find_unused_parameters:
            self._order = self._order or list(self._ready)
        for parameter in unused:  # from micro-batches inside no_sync there may be one all the same
            if parameter.grad is not None and parameter not in self._local:
                self._kept[parameter] = parameter.grad
                parameter.grad = None
            if parameter.grad is not None:
                ready.add(parameter)
            self._fill(parameter, parameter.grad)
        used = self._used_somewhere(ready)
        while self._sent:
            self._arrived()
        for number, flat in self._flat.items():  # the owner's
            bucket = self._buckets[number]
            for parameter, mean in zip(bucket.tensors, bucket.views(flat), strict=True):
                if parameter in self._kept:
                    mean += self._kept[parameter]
                if parameter in used or parameter in self._kept:
                    parameter.grad = mean
        self._start_anew()

    def _used_somewhere(self, mine: set[torch.Tensor]) -> set[torch.Tensor]:
        """Parameters that have a gradient on at least one rank; the others must not be updated at all."""
        if not self.find_unused_parameters:
            return set(self._trained)
        flags = torch.tensor([p in mine for p in self._trained], dtype=torch.int32)
        flags = flags.to(self._trained[0].device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self.process_group)
        return {p for p, used in zip(self._trained, flags.tolist(), strict=True) if used}

    # --- buckets --------------------------------------------------------------------------------------------

    def _plan(self, order: Sequence[torch.Tensor]) -> None:
        self._buckets = in_buckets(order, self.optimizer.owner.__getitem__, self._bucket_bytes)
        self._place = {
            parameter: (number, slot)
            for number, bucket in enumerate(self._buckets)
            for slot, parameter in enumerate(bucket.tensors)
        }

    def _plan_once(self) -> None:
        """After the first whole backward: buckets in the order in which rank 0's gradients became ready."""
        if self._planned_for_good or not self._order:
            return
        index = {p: i for i, p in enumerate(self._trained)}
        order = torch.tensor([index[p] for p in self._order], device=self._trained[0].device)
        dist.broadcast(order, group=self.process_group, group_src=0)
        self._plan([self._trained[i] for i in order.tolist()])
        self._planned_for_good = True
        self._start_anew()

    def _start_anew(self) -> None:
        """Nothing is under way: no bucket has memory."""
        self._flat: dict[int, torch.Tensor] = {}  # by bucket: those that hold memory now
        self._missing = [len(bucket.tensors) for bucket in self._buckets]
        self._next = (
            0  # the bucket to send next: the same order on every rank, whatever is ready first here
        )
        self._sent: deque[tuple[int, dist.Work]] = deque()
        self._ready: list[torch.Tensor] = []
        self._kept: dict[torch.Tensor, torch.Tensor] = {}  # means of earlier backwards
        self._under_way = False

    # --- what else a user may ask for -----------------------------------------------------------------------

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of backwards inside stay whole on the rank; the next one outside sends the mean of their sums."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def state_dict(self, *args: Any, **keywords: Any) -> Any:
        """The wrapped module's own state, whole on every rank: no prefix before the names."""
        return self.module.state_dict(*args, **keywords)

    def load_state_dict(self, state_dict: Any, *args: Any, **keywords: Any) -> Any:
        """Loads into the wrapped module."""
        return self.module.load_state_dict(state_dict, *args, **keywords)

    def _check_parameters(self) -> None:
        """Raises ValueError if a parameter of the module is not (or no more) one that the optimizer knows."""
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad and parameter not in self.optimizer.owner:
                raise ValueError(
                    f"{name} is not among the optimizer's parameters: freeze it, pass it to the optimizer, or, if the module "
                    "was changed since, build the optimizer and the wrapper again"
                )
