"""DistributedDataParallel by hand: averaged gradients, in buckets, while backward is still running.

    model = DistributedDataParallel(model)      # PyTorch's shape of API: only the import differs
    loss(model(x), y).backward()                # the gradients are averaged when backward returns
    optimizer.step()

A hook on each parameter copies its gradient into a bucket as soon as backward has made it. A full bucket is
all-reduced at once, in the background, buckets always in the same order on every rank. When backward ends, a callback
waits for what is still under way. Source: Li et al., PyTorch Distributed (VLDB 2020, arXiv 2006.15704).

A rank sends 2 (p - 1) / p of the gradients' bytes in a step (ring), and holds the gradients once, in the buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from dtcourse.data_parallel import buckets as bucketing
from dtcourse.data_parallel.buckets import Bucket
from dtcourse.data_parallel.join import DataParallelJoinHook, active_ranks
from dtcourse.data_parallel.naive import Group, broadcast_model
from dtcourse.data_parallel.unused import UsedParameters

CommHook = Callable[[Any, Any], torch.futures.Future[torch.Tensor]]


class DistributedDataParallel(nn.Module, Joinable):
    """Wraps `module` so that backward leaves the mean of all ranks' gradients in every parameter.

    module:                 the same on every rank but for its values, which become rank 0's
    bucket_cap_mb:          MiB a bucket (the first one holds at most 1)
    find_unused_parameters: look after each forward for parameters that its result does not depend on; without it,
                            such a parameter raises an error that names it (see unused.py)
    static_graph:           look after the first forward only: the same parameters are used in every step
    broadcast_buffers:      before each forward, give every rank rank 0's buffers (running statistics)
    process_group:          default: all ranks

    Gradients are views into the buckets, as with PyTorch's gradient_as_bucket_view=True: held once, and overwritten by
    the next step, so clone one that you want to keep.
    Raises ValueError if the ranks built different models, or none of the parameters needs a gradient.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: Group = None,
        bucket_cap_mb: float = 25.0,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        static_graph: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        Joinable.__init__(self)
        self.module = module
        self.process_group = process_group or dist.group.WORLD
        self.world_size = dist.get_world_size(self.process_group)
        self.find_unused_parameters, self.static_graph = find_unused_parameters, static_graph
        self.broadcast_buffers = broadcast_buffers
        self.require_backward_grad_sync = True

        # Tied parameters appear once: model.parameters() knows.
        self._parameters_with_gradient = [p for p in module.parameters() if p.requires_grad]
        self._names = {p: name for name, p in module.named_parameters()}
        broadcast_model(module, group=self.process_group)
        if not self._parameters_with_gradient:
            raise ValueError(
                "none of the module's parameters needs a gradient, so there is nothing to average: "
                "use the module as it is"
            )
        self._used = UsedParameters(
            self._parameters_with_gradient, find_unused_parameters, static_graph, self.process_group
        )

        self._bucket_bytes = int(bucket_cap_mb * (1 << 20))
        self._hook: tuple[CommHook, Any] | None = None
        self._divide_by = self.world_size
        self.divide_by_initial_world_size = True  # Join may say otherwise
        self._ready_order: list[nn.Parameter] = []
        self._rebuilt = False
        self._armed = False  # a forward has run whose backward is still to come
        self._quiet = False  # the last forward ran inside no_sync
        self._build(list(reversed(self._parameters_with_gradient)))
        for parameter in self._parameters_with_gradient:
            parameter.register_post_accumulate_grad_hook(self._gradient_is_ready)

    # --- forward --------------------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Runs the wrapped module, and prepares for the backward that will follow."""
        synchronises = torch.is_grad_enabled() and self.require_backward_grad_sync
        if synchronises:
            active = self._note_join()
            if len(active) == self.world_size:
                self._rebuild_once()
            if self.broadcast_buffers:
                self._broadcast_buffers(source=active[-1] if len(active) < self.world_size else 0)
        output = self.module(*inputs, **keywords)
        if synchronises:
            self._prepare_backward(output)
        elif torch.is_grad_enabled():
            self._quiet = True
        return output

    def _prepare_backward(self, output: Any) -> None:
        self._armed, self._quiet = True, False
        self._ready_order = []
        self._seen: set[nn.Parameter] = set()
        self._missing = [len(bucket.parameters()) for bucket in self._buckets]
        self._next = (
            0  # the bucket to send next: the same order on every rank, whatever is ready first here
        )
        self._futures: list[torch.futures.Future[Any]] = []
        self._callback_queued = False
        self._unused = self._used.unused_here(output)

    # --- backward -------------------------------------------------------------------------------------------

    def _gradient_is_ready(self, parameter: nn.Parameter) -> None:
        """The hook: backward has finished this parameter's gradient."""
        if not self._armed and self._quiet:
            return
        if not self._armed:
            raise RuntimeError(
                "backward ran again for a forward whose gradients have been averaged already, or for one that came "
                "before another: add the losses and call backward once, or wrap all but the last in no_sync()"
            )
        if not self._callback_queued:
            # Runs when the whole backward is done, whichever hook comes last.
            Variable._execution_engine.queue_callback(self._finish_backward)
            self._callback_queued = True
            for unused in sorted(self._unused, key=lambda p: self._place[p]):
                self._fill(unused, None)
        if not self._rebuilt:
            self._ready_order.append(parameter)
        self._fill(parameter, parameter.grad)

    def _fill(self, parameter: nn.Parameter, gradient: torch.Tensor | None) -> None:
        """Puts a gradient into its bucket, and sends all buckets whose turn it is."""
        if parameter in self._seen:
            raise RuntimeError(
                f"{self._names[parameter]} got a gradient, though it was counted as unused or had one already. Forward "
                "must return all that the loss depends on; and with static_graph=True every step must use the "
                "parameters that the first one used: where that changes, pass find_unused_parameters=True instead."
            )
        number, slot = self._place[parameter]
        view = self._buckets[number].gradients()[slot]
        self._seen.add(parameter)
        # Divide before the sum, not after: half-precision sums of many ranks would overflow. A hook divides itself.
        scale = 1.0 if self._hook else 1.0 / self._divide_by
        if gradient is None:
            view.zero_()
        else:
            torch.mul(gradient, scale, out=view)
            parameter.grad = view  # from here on the optimizer reads the bucket
        self._missing[number] -= 1
        while self._next < len(self._buckets) and self._missing[self._next] == 0:
            self._futures.append(self._send(self._buckets[self._next]))
            self._next += 1

    def _send(self, bucket: Bucket) -> torch.futures.Future[Any]:
        if self._hook:
            hook, state = self._hook
            return hook(state, bucket)
        work = dist.all_reduce(bucket.buffer(), group=self.process_group, async_op=True)
        return work.get_future()

    def _finish_backward(self) -> None:
        """Backward is over: everything must have been sent; wait until it has arrived."""
        self._armed = False
        if self._next < len(self._buckets):
            names = [self._names[p] for p in self._parameters_with_gradient if p not in self._seen]
            raise RuntimeError(
                f"this backward gave no gradient to {', '.join(names)}: the loss does not depend on them on this "
                "rank. Pass find_unused_parameters=True (with static_graph=True they must be the same in every step), or "
                "freeze them with requires_grad_(False)."
            )
        used_somewhere = self._used.used_somewhere(self._unused)
        for bucket, future in zip(self._buckets, self._futures, strict=True):
            result = future.wait()
            result = result[0] if isinstance(result, list) else result
            if self._hook and result.data_ptr() != bucket.buffer().data_ptr():
                bucket.set_buffer(result)
        for parameter in self._unused:
            # Used on another rank: its gradient is in the bucket. Used nowhere: it keeps the one it had.
            if parameter in used_somewhere:
                number, slot = self._place[parameter]
                parameter.grad = self._buckets[number].gradients()[slot]

    # --- buckets --------------------------------------------------------------------------------------------

    def _build(self, order: list[nn.Parameter]) -> None:
        self._buckets = bucketing.assign(order, bytes_each=self._bucket_bytes)
        self._place = {
            parameter: (number, slot)
            for number, bucket in enumerate(self._buckets)
            for slot, parameter in enumerate(bucket.parameters())
        }

    def _rebuild_once(self) -> None:
        """After the first step: buckets in the order in which rank 0's gradients became ready."""
        if self._rebuilt or not self._ready_order:
            return
        if self.find_unused_parameters and not self.static_graph:
            return  # the order changes from step to step; what we have is as good as any
        number = {p: i for i, p in enumerate(self._parameters_with_gradient)}
        ready = [number[p] for p in self._ready_order]
        unused = sorted(set(number.values()) - set(ready))  # ready before all others
        order = torch.tensor(unused + ready)
        order = order.to(self._buckets[0].buffer().device)
        dist.broadcast(order, group=self.process_group, group_src=0)
        kept = {p: p.grad for p in self._parameters_with_gradient if p.grad is not None}
        self._build([self._parameters_with_gradient[i] for i in order.tolist()])
        for parameter, gradient in kept.items():
            index, slot = self._place[parameter]
            view = self._buckets[index].gradients()[slot]
            parameter.grad = view.copy_(gradient)
        self._rebuilt = True

    # --- what else a user may ask for -----------------------------------------------------------------------

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of what runs inside stay on the rank; the next backward averages their sum.

        Forward decides, as in PyTorch: it must run inside as well.
        """
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def register_comm_hook(self, state: Any, hook: CommHook) -> None:
        """Calls hook(state, bucket) in place of the all-reduce, once a bucket. PyTorch's own hooks fit.

        The hook returns a Future of the averaged flat gradients; dividing by the world size is its business.
        """
        if self._hook is not None:
            raise ValueError("a communication hook is registered already: a model has one")
        self._hook = (hook, state)

    def state_dict(self, *args: Any, **keywords: Any) -> Any:
        """The wrapped module's own state: no "module." before the names, so it loads anywhere."""
        return self.module.state_dict(*args, **keywords)

    def load_state_dict(self, state_dict: Any, *args: Any, **keywords: Any) -> Any:
        """Loads into the wrapped module. Names that PyTorch's wrapper has prefixed are understood."""
        if state_dict and all(name.startswith("module.") for name in state_dict):
            state_dict = {name.removeprefix("module."): value for name, value in state_dict.items()}
        return self.module.load_state_dict(state_dict, *args, **keywords)

    def _broadcast_buffers(self, source: int) -> None:
        with torch.no_grad():
            for buffer in self.module.buffers():
                dist.broadcast(buffer, group=self.process_group, group_src=source)

    # --- uneven inputs: torch.distributed.algorithms.Join ----------------------------------------------------

    def join_hook(self, **keywords: Any) -> JoinHook:
        """What this rank does for the others once it has no more data; see join.py."""
        return DataParallelJoinHook(self, keywords.get("divide_by_initial_world_size", True))

    @property
    def join_device(self) -> torch.device:
        """Where Join counts the ranks that still have data."""
        return self._buckets[0].buffer().device

    @property
    def join_process_group(self) -> Any:
        """The ranks that join."""
        return self.process_group

    def _note_join(self) -> list[int]:
        """The ranks that take this step. Inside Join, tells the others of it: they shadow what this rank sends."""
        self._divide_by = self.world_size
        everyone = list(range(self.world_size))
        if not self._join_config.enable:
            return everyone
        Join.notify_join_context(self)
        active = active_ranks(self, has_data=True)
        if not self.divide_by_initial_world_size:
            self._divide_by = len(active)
        return active
