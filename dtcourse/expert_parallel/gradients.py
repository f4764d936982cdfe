"""Gradients of experts and of all else: each summed over those who hold the same, and divided by the same number.

What counts is the mean of the losses of all W ranks. Backward on a rank begins at its own loss,
and what it leaves there is:

    an expert's gradient       from the tokens of all ranks that send to it: a sum of p ranks' losses already
    any other parameter's      from its own tokens: one rank's loss

So experts are summed over the W / p ranks that hold them too, all others over all W ranks, and *both* are divided by W.
Averaging experts over those that hold them, as DistributedDataParallel would, is p times too much; SGD shows it, Adam
hides it.

Bytes: an all-reduce of each parameter that a rank holds, on each axis on which others hold it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from dtcourse.expert_parallel.state import (
    check_no_other_slices,
    experts_of,
    joined,
    plain_name,
)


def average_gradients(model: nn.Module, mesh: DeviceMesh) -> None:
    """Makes each gradient that of the mean of all ranks' losses. Between backward and the optimizer's step,
    on all ranks.

    mesh: the one of expert_parallel. A parameter without a gradient counts as zero, as others may have one.
    """
    experts = experts_of(model)
    groups = [mesh.get_group(i) for i in range(mesh.ndim)]
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        for group in groups:
            if name not in experts or group not in experts[name].groups:
                dist.all_reduce(p.grad, group=group)
        p.grad /= mesh.size()


def full_gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """The plain model's gradients by its names, on every rank; None where there is none. A collective."""
    check_no_other_slices(model, "expert_parallel.full_gradients")
    experts = experts_of(model)
    return {
        plain_name(name): None
        if p.grad is None
        else joined(p.grad, experts[name].groups if name in experts else ())
        for name, p in model.named_parameters()
    }
