"""Uneven inputs: what a rank without data does for the others, so that nobody waits for ever.

    with torch.distributed.algorithms.join.Join([model]):
        for x, y in my_batches:                # not the same number on every rank
            ...

A rank that leaves its loop shadows every collective of those still inside: it takes part in each one, with zeros. At
the end all ranks take the parameters of one that stepped to the last. PyTorch's Join runs the loop; this module says
what to shadow, which is what ddp.py calls in one step, in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook

if TYPE_CHECKING:
    from dtcourse.data_parallel.ddp import DistributedDataParallel


def active_ranks(model: DistributedDataParallel, has_data: bool) -> list[int]:
    """The ranks of the group that still have data, found together: every rank must call it."""
    flags = torch.zeros(model.world_size, dtype=torch.int32, device=model.join_device)
    flags[dist.get_rank(model.process_group)] = int(has_data)
    dist.all_reduce(flags, group=model.process_group)
    return flags.nonzero().flatten().tolist()


class DataParallelJoinHook(JoinHook):
    """Shadows one step of DistributedDataParallel.

    divide_by_initial_world_size: the mean stays over all ranks, so a joined rank counts as a gradient of zero;
    False divides by the number of ranks that still have data.
    """

    def __init__(self, model: DistributedDataParallel, divide_by_initial_world_size: bool) -> None:
        model.divide_by_initial_world_size = divide_by_initial_world_size
        self.model = model

    def main_hook(self) -> None:
        """One step of the others: the same collectives, in the same order, with nothing to add."""
        model = self.model
        active = active_ranks(model, has_data=False)
        if model.broadcast_buffers:
            model._broadcast_buffers(source=active[-1])
        futures = []
        for bucket in model._buckets:
            bucket.buffer().zero_()
            futures.append(model._send(bucket))
        model._used.used_somewhere(None)
        for future in futures:
            future.wait()
        # It takes part in building the buckets again, once all have data: after a step, as the others count.
        model._ready_order = model._ready_order or list(reversed(model._parameters_with_gradient))

    def post_hook(self, is_last_joiner: bool) -> None:
        """All ranks are out of data: everyone takes the model of one that made the last step."""
        model = self.model
        me = dist.get_rank(model.process_group)
        source = torch.tensor([me if is_last_joiner else -1], device=model.join_device)
        dist.all_reduce(source, op=dist.ReduceOp.MAX, group=model.process_group)
        with torch.no_grad():
            for tensor in [*model.module.parameters(), *model.module.buffers()]:
                dist.broadcast(tensor, group=model.process_group, group_src=int(source))
