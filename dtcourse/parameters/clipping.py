"""The norm of the whole model's gradients, and clipping by it, whatever techniques have cut the parameters.

torch.nn.utils.clip_grad_norm_ would see this rank's pieces alone: another norm, and another scale, on each rank, and
the copies of what all hold part. Here each gradient's powers are summed over the axes on which it is cut (placement.py)
and over no others; of a slice that several ranks hold the first one's count, of what is on an owner alone (ZeRO) the
owner's. One all-reduce per axis, of one number for each set of axes that gradients are cut over; at last one
number over a pipeline (owners.py).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from dtcourse import device
from dtcourse.parameters.grad_norm import Spread, check_max_norm, scale_to, total_norm
from dtcourse.parameters.naming import gradients_in
from dtcourse.parameters.owners import owners_of
from dtcourse.parameters.placement import local


def clip_grad_norm(
    model: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scales all gradients so that their norm is at most `max_norm`; returns the norm before, in float64.

    As torch.nn.utils.clip_grad_norm_ of the plain model on the whole batch, the same on every rank. All ranks call it,
    when the gradients are averaged: before, each rank's are of its own part of the batch, and so is their norm.
    Raises ValueError where max_norm or norm_type is no number above 0, and nothing is scaled.
    """
    check_max_norm(max_norm)
    norm = grad_norm(model, norm_type)
    scale_to(
        [local(e.parameter.grad) for e in gradients_in(model) if e.parameter.grad is not None],
        norm,
        max_norm,
        error_if_nonfinite,
    )
    return norm


def grad_norm(model: nn.Module, norm_type: float = 2.0) -> Tensor:
    """The norm alone: a scalar tensor in float64, the same on every rank. A collective."""
    # A rank without any gradient takes part in the sums all the same, so every axis is there from the start.
    held: dict[tuple[Any, ...], list[Tensor]] = {}
    owners = owners_of(model)
    elsewhere = owners.later() if owners else ()
    for entry in gradients_in(model):
        mine = held.setdefault(entry.placed.over, [])
        counts = entry.placed.counts and entry.parameter not in elsewhere
        if entry.parameter.grad is not None and counts:
            mine.append(local(entry.parameter.grad))
    here = device.current()
    spreads = [Spread(gradients, over, here) for over, gradients in held.items()]
    return total_norm(spreads, norm_type, (owners.group,) if owners else ())
