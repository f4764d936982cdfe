"""Clipping by the norm of all gradients, of which each rank has its own experts',
and all others as every rank has them.

torch.nn.utils.clip_grad_norm_ would see this rank's experts alone: another norm, and another scale, on each rank, and
the gates and norms that all hold part. Experts' squares are summed over the ranks among which they are given out, not
over those that hold the same ones; what all hold counts once. One all-reduce of one number an axis.
"""

from __future__ import annotations

import torch
from torch import nn

from dtcourse import device
from dtcourse.expert_parallel.state import check_no_other_slices, experts_of
from dtcourse.parameters.grad_norm import Spread, scale_to, total_norm
from dtcourse.parameters.replicas import Group
from dtcourse.parameters.slices import require_whole_gradients


def clip_grad_norm(
    model: nn.Module, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> torch.Tensor:
    """Scales all gradients so that their norm is at most `max_norm`; returns the norm before, in float64.

    As torch.nn.utils.clip_grad_norm_ of the plain model on the whole batch, the same on every rank. All ranks call it,
    after `average_gradients`: before, each rank's gradients are of its own tokens, and so is their norm.
    """
    check_no_other_slices(model, "expert_parallel.clip_grad_norm")
    require_whole_gradients(
        model.named_parameters(),
        "expert_parallel.clip_grad_norm",
        "Call average_gradients(model, mesh) alone.",
    )
    experts = experts_of(model)
    here = device.current()
    # A rank without any gradient takes part in the sums all the same, so every group is there from the start.
    held: dict[tuple[Group, ...], list[torch.Tensor]] = {(): []}
    held.update({module.groups: [] for module in experts.values()})
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            held[experts[name].groups if name in experts else ()].append(parameter.grad)
    spreads = [Spread(gradients, groups, here) for groups, gradients in held.items()]
    norm = total_norm(spreads, norm_type)
    every = [gradient for gradients in held.values() for gradient in gradients]
    scale_to(every, norm, max_norm, error_if_nonfinite)
    return norm
