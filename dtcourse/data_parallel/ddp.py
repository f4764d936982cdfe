"""DistributedDataParallel by hand: averaged gradients, in buckets, while backward is still running.

    model = DistributedDataParallel(model)      # PyTorch's shape of API: only the import differs
    loss(model(x), y).backward()                # the gradients are averaged when backward returns
    optimizer.step()

A hook on each parameter copies its gradient into a bucket as soon as backward has made it. A full bucket is
all-reduced at once, in the background, buckets always in the same order on every rank. When backward ends, a callback
waits for what is still under way. All of that is the Reducer (parameters/reducer.py), which other techniques use too;
here is what a user sees: a module, its forward, and what it may be asked for. Source: Li et al., PyTorch Distributed
(VLDB 2020, arXiv 2006.15704).

A rank sends 2 (p - 1) / p of the gradients' bytes in a step (ring), and holds the gradients once, in the buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.distributed.device_mesh import DeviceMesh

from dtcourse import nested
from dtcourse.data_parallel import options
from dtcourse.data_parallel.join import DataParallelJoinHook, active_ranks
from dtcourse.data_parallel.options import Device
from dtcourse.parameters import buckets
from dtcourse.parameters.backward import check_only_wrapper, check_same_parameters
from dtcourse.parameters.comm_hooks import CheckedHook, CommHook, check_hook
from dtcourse.parameters.plain_replica import require_all_here
from dtcourse.parameters.reducer import Reducer
from dtcourse.parameters.replicas import Group, broadcast_model, broadcast_tensors
from dtcourse.parameters.slices import require_replicas
from dtcourse.parameters.unused import UsedParameters
from dtcourse.parameters.wrapper import Wrapper
from dtcourse.torch_private import joining


class DistributedDataParallel(Wrapper, Joinable):
    """Wraps `module` so that backward leaves the mean of all ranks' gradients in every parameter.

    module:                  the same on every rank but for its values, which become rank 0's
    device_ids:              [the one GPU that the module is on]: forward moves its inputs there; default: they stay
    broadcast_buffers:       before each forward, give every rank rank 0's buffers (running statistics); the default.
                             False leaves each rank its own from the start (forward_sync_buffers=False: after the start)
    init_sync:               False: the ranks have the same values already, and nothing is compared or sent
    process_group:           default: all ranks; or device_mesh, of one axis
    bucket_cap_mb:           MiB a bucket; default 25, the first one at most 1
    find_unused_parameters:  look after each forward for parameters that its result does not depend on; without it,
                             such a parameter raises an error that names it (see unused.py)
    gradient_as_bucket_view: gradients are views into the buckets: held once, and overwritten by the next step, so clone
                             one that you want to keep. False, PyTorch's default: tensors of their own, N elements more
    static_graph:            look in the first step only: the same parameters are used in every step

    These are PyTorch's keywords; options.py says what becomes of its other ones. A copy, by copy.deepcopy or pickle, is
    made without messages: it has buckets and hooks of its own, the default group and no communication hook.
    Raises ValueError if the ranks built different models, or none of the parameters needs a gradient.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[Device] | None = None,
        output_device: Device | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Group = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        *,
        gradient_as_bucket_view: bool = True,
        static_graph: bool = False,
        device_mesh: DeviceMesh | None = None,
        forward_sync_buffers: bool | None = None,
        **keywords: Any,
    ) -> None:
        options.refuse(keywords)
        nn.Module.__init__(self)
        Joinable.__init__(self)
        self.module = module
        self.process_group = options.group_of(process_group, device_mesh)
        self.find_unused_parameters, self.static_graph = find_unused_parameters, static_graph
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.broadcast_buffers = broadcast_buffers = broadcast_buffers is not False
        if forward_sync_buffers is not None:  # PyTorch's newer word, for what comes after the start
            self.broadcast_buffers, broadcast_buffers = forward_sync_buffers, True
        self.require_backward_grad_sync = True
        self.divide_by_initial_world_size = True  # Join may say otherwise
        self._bucket_bytes = int((25 if bucket_cap_mb is None else bucket_cap_mb) * (1 << 20))
        instead = "Its own Pipeline(..., data_parallel=group) averages"
        require_all_here(module, type(self).__name__, instead)
        require_replicas(module.named_parameters(), self.process_group, type(self).__name__)
        if init_sync:
            broadcast_model(module, group=self.process_group, buffers=broadcast_buffers)
        if not any(p.requires_grad for p in module.parameters()):
            raise ValueError(
                "none of the module's parameters needs a gradient, so there is nothing to average: "
                "use the module as it is"
            )
        self._input_device = options.input_device(module, device_ids, output_device, dim)
        self._start()

    def _start(self) -> None:
        """What follows from the module, the group and the options."""
        self.world_size = dist.get_world_size(self.process_group)
        # Tied parameters appear once: named_parameters() knows.
        names = {p: n for n, p in self.module.named_parameters() if p.requires_grad}
        self.reducer = Reducer(
            names,
            self.process_group,
            assign=partial(buckets.assign, bytes_each=self._bucket_bytes),
            used=UsedParameters(
                list(names), self.find_unused_parameters, self.static_graph, self.process_group
            ),
            gradient_as_bucket_view=self.gradient_as_bucket_view,
        )

    # --- forward --------------------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Runs the wrapped module, and prepares for the backward that will follow."""
        reducer, trains = self.reducer, torch.is_grad_enabled()
        synchronises = trains and self.require_backward_grad_sync
        if trains:
            check_same_parameters(self.module, reducer.names)
        if synchronises:
            if not reducer.order:  # it has not had a backward yet
                check_only_wrapper(reducer, reducer.names)
            active = self._note_join()
            if len(active) == self.world_size:
                reducer.rebuild()
            if self.broadcast_buffers:
                source = active[-1] if len(active) < self.world_size else 0
                broadcast_tensors(self.module.buffers(), source, self.process_group)
        if self._input_device is not None:
            move = partial(torch.Tensor.to, device=self._input_device)
            inputs, keywords = nested.map_tensors(move, (inputs, keywords))
        output = self.module(*inputs, **keywords)
        if synchronises:
            reducer.prepare_for_backward(output)
        elif trains:
            reducer.keep_local(output)
        return output

    # --- what else a user may ask for -----------------------------------------------------------------------

    def register_comm_hook(self, state: Any, hook: CommHook) -> None:
        """Calls hook(state, bucket) in place of the all-reduce, once a bucket. PyTorch's own hooks fit.

        The hook returns a Future of the averaged flat gradients; dividing by the world size is its business.
        Raises TypeError or ValueError for what is no hook (comm_hooks.py), RuntimeError for a second one.
        """
        check_hook(hook)
        if self.reducer.hook is not None:
            raise RuntimeError(
                "register_comm_hook or register_builtin_comm_hook can only be called once: a model has one "
                "communication hook, so combine the two in one"
            )
        self.reducer.hook = CheckedHook(hook, state)

    __deepcopy__ = None  # type: ignore[assignment]  # by these two instead: a copy makes hooks of its own

    def __getstate__(self) -> dict[str, Any]:
        if self.process_group is not dist.group.WORLD:
            raise ValueError(
                "a copy of a DistributedDataParallel takes the default group, and this one has another: copy or "
                "save its .module, and wrap that"
            )
        left_out = {"process_group", "world_size", "reducer"}
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.process_group = options.group_of(None, None)
        self._start()

    # --- uneven inputs: torch.distributed.algorithms.Join ----------------------------------------------------

    def join_hook(self, **keywords: Any) -> JoinHook:
        """What this rank does for the others once it has no more data; see join.py."""
        self.divide_by_initial_world_size = keywords.get("divide_by_initial_world_size", True)
        buffers = list(self.module.buffers()) if self.broadcast_buffers else []
        return DataParallelJoinHook(self.reducer, list(self.module.parameters()), buffers)

    @property
    def join_device(self) -> torch.device:
        """Where Join counts the ranks that still have data."""
        return self.reducer.parameters[0].device

    @property
    def join_process_group(self) -> Any:
        """The ranks that join."""
        return self.process_group

    def _note_join(self) -> list[int]:
        """The ranks that take this step. Inside Join, tells the others of it: they shadow what this rank sends."""
        active = list(range(self.world_size))
        if joining(self):
            Join.notify_join_context(self)
            active = active_ranks(self.process_group, self.join_device, has_data=True)
        by_all = self.divide_by_initial_world_size
        self.reducer.divide_by = self.world_size if by_all else len(active)
        return active
