"""Clipping by the norm of all gradients, of which each rank has some slices, and some that all ranks have.

torch.nn.utils.clip_grad_norm_ would see this rank's part alone: another norm, and another scale, on each rank, and the
copies of norms and biases part. Slices are summed over the ranks, what all hold counts once, and of a key-value head
that several ranks hold the first one's. One all-reduce of one number.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from dtcourse import device
from dtcourse.parameters.grad_norm import Spread, scale_to, total_norm
from dtcourse.parameters.replicas import Group
from dtcourse.parameters.slices import require_whole_gradients
from dtcourse.tensor_parallel.shards import check_no_other_slices, shards_of


def clip_grad_norm(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Scales all gradients of a parallelized model so that their norm is at most `max_norm`; returns the norm before.

    The norm is the unsharded model's, the same on every rank. All ranks call it, after backward.
    Raises ValueError where other techniques cut parameters too, or leave gradients on their owners alone (ZeRO-2).
    """
    check_no_other_slices(model, "tensor_parallel.clip_grad_norm")
    require_whole_gradients(
        model.named_parameters(),
        "tensor_parallel.clip_grad_norm",
        "Average with DistributedDataParallel over the data axis, which leaves the mean on all; ZeroRedundancy"
        "Optimizer may share out the step.",
    )
    shards = shards_of(model)
    whole: list[torch.Tensor] = []
    slices: dict[Group, list[torch.Tensor]] = {shard.group: [] for shard in shards.values()}
    gradients = []
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        gradients.append(parameter.grad)
        shard = shards.get(name)
        if shard is None:
            whole.append(parameter.grad)
        elif dist.get_rank(shard.group) % shard.copies == 0:
            slices[shard.group].append(parameter.grad)
    here = device.current()
    spreads = [Spread(whole, (), here)]
    spreads += [Spread(mine, (group,), here) for group, mine in slices.items()]
    norm = total_norm(spreads, norm_type)
    scale_to(gradients, norm, max_norm)
    return norm
