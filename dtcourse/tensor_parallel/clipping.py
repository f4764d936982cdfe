"""Clipping by the norm of all gradients, of which each rank has some slices, and some that all ranks have.

torch.nn.utils.clip_grad_norm_ would see this rank's part alone: another norm, and another scale, on each rank, and the
copies of norms and biases part. Slices are summed over the ranks, what all hold counts once, and of a key-value head
that several ranks hold the first one's (parameters/clipping.py). One all-reduce of one number.
"""

from __future__ import annotations

import torch
from torch import nn

from dtcourse.parameters import clipping


def clip_grad_norm(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Scales all gradients of a parallelized model so that their norm is at most `max_norm`; returns the norm before.

    The norm is the unsharded model's, the same on every rank. All ranks call it, after backward; under full sharding
    too. Raises ValueError where another technique leaves gradients on their owners alone (ZeRO-2).
    """
    return clipping.clip_grad_norm(model, max_norm, norm_type)
