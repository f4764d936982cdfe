"""Uneven inputs: what a rank without data does for the others, so that nobody waits for ever.

    with torch.distributed.algorithms.join.Join([model]):
        for x, y in my_batches:                # not the same number on every rank
            ...

A rank that leaves its loop shadows every collective of those still inside: it takes part in each one, with zeros. At
the end all ranks take the parameters of one that stepped to the last. PyTorch's Join runs the loop; this module says
what to shadow, which is what ddp.py calls in one step, in the same order.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook

from dtcourse.parameters.reducer import Reducer
from dtcourse.parameters.replicas import Group, broadcast_tensors


def active_ranks(group: Group, device: torch.device, has_data: bool) -> list[int]:
    """The ranks of the group that still have data, found together: every rank must call it."""
    flags = torch.zeros(dist.get_world_size(group), dtype=torch.int32, device=device)
    flags[dist.get_rank(group)] = int(has_data)
    dist.all_reduce(flags, group=group)
    return flags.nonzero().flatten().tolist()


class DataParallelJoinHook(JoinHook):
    """Shadows the steps of DistributedDataParallel.

    parameters, buffers: of its module; buffers only where it broadcasts them before each forward
    """

    def __init__(
        self, reducer: Reducer, parameters: list[torch.Tensor], buffers: list[torch.Tensor]
    ) -> None:
        self.reducer, self.parameters, self.buffers = reducer, parameters, buffers
        self.group, self.device = reducer.group, reducer.parameters[0].device

    def main_hook(self) -> None:
        """One step of the others: the same collectives, in the same order, with nothing to add."""
        active = active_ranks(self.group, self.device, has_data=False)
        broadcast_tensors(self.buffers, source=active[-1], group=self.group)
        self.reducer.reduce_local()

    def post_hook(self, is_last_joiner: bool) -> None:
        """All ranks are out of data: everyone takes the model of one that made the last step."""
        me = dist.get_rank(self.group)
        last = torch.tensor([me if is_last_joiner else -1], device=self.device)
        dist.all_reduce(last, op=dist.ReduceOp.MAX, group=self.group)
        broadcast_tensors([*self.parameters, *self.buffers], int(last), self.group)
