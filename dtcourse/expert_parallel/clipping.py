"""Clipping by the norm of all gradients, of which each rank has its own experts',
and all others as every rank has them.

torch.nn.utils.clip_grad_norm_ would see this rank's experts alone: another norm, and another scale, on each rank, and
the gates and norms that all hold part. Experts' squares are summed over the ranks among which they are given out, not
over those that hold the same ones; what all hold counts once (parameters/clipping.py). One all-reduce of one number an
axis.
"""

from __future__ import annotations

import torch
from torch import nn

from dtcourse.parameters import clipping


def clip_grad_norm(
    model: nn.Module, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> torch.Tensor:
    """Scales all gradients so that their norm is at most `max_norm`; returns the norm before, in float64.

    As torch.nn.utils.clip_grad_norm_ of the plain model on the whole batch, the same on every rank. All ranks call it,
    after `average_gradients`: before, each rank's gradients are of its own tokens, and so is their norm.
    """
    return clipping.clip_grad_norm(model, max_norm, norm_type, error_if_nonfinite)
