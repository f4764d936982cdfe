"""What ranks that hold the same model do with it: start it alike, average its gradients.

After they have started from the same weights, replicas stay the same because each takes the same step: the mean of all
ranks' gradients. The mean over ranks of the mean over each rank's equal share is the mean over the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.parameters.cuts import Group
from dtcourse.parameters.same_model import check_same_model, named_tensors

__all__ = ["Group", "average_gradients", "broadcast_model", "broadcast_tensors"]


def broadcast_model(
    model: nn.Module,
    source: int = 0,
    group: Group = None,
    buffers: bool = True,
    *,
    who: str = "one model on all ranks",
) -> None:
    """Gives every rank the parameters and, unless told not to, the buffers of `source` (a rank of the group).

    who: asks for it: a part of the message where ranks of the group hold different slices
    Raises ValueError on every rank, before anything is sent, if the ranks built different models.
    """
    check_same_model(model, group, buffers, who)
    broadcast_tensors((t for _, t in named_tensors(model, buffers)), source, group)


def broadcast_tensors(
    tensors: Iterable[torch.Tensor], source: int = 0, group: Group = None
) -> None:
    """Gives every rank the values of `source`, a rank of the group, one message a tensor."""
    with torch.no_grad():
        for tensor in tensors:
            dist.broadcast(tensor, group=group, group_src=source)


def average_gradients(model: nn.Module, group: Group = None) -> None:
    """Replaces each gradient by its mean over the ranks. Call it between backward and the optimizer's step.

    A parameter without a gradient on this rank counts as zero, since another rank may have one; every rank must
    all-reduce the same parameters in the same order, or they wait for each other for ever.
    """
    size = dist.get_world_size(group)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= size
