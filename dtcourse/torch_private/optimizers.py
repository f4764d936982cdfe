"""What a GradScaler and an optimizer say to each other."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer


def let_scaler_step(optimizer: Optimizer) -> None:
    """From now on a GradScaler calls step() after an overflow too, and leaves dividing and leaving out to it."""
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]


def said_by_scaler(optimizer: Optimizer) -> tuple[Any, Any]:
    """What a GradScaler has set for this step; (None, None) without one.

    The first is not 0 where a gradient of this rank is not finite; the second what gradients are to be divided by,
    None where they have been.
    """
    return getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)


def scaler_steps(optimizer: Optimizer) -> bool:
    """Whether a GradScaler is to call this optimizer's step() after an overflow too."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def step_under_scaler(
    optimizer: Optimizer, found_inf: torch.Tensor | None, *args: Any, **kwargs: Any
) -> Any:
    """Calls step() as a GradScaler does that has divided the gradients already."""
    if not scaler_steps(optimizer):
        return optimizer.step(*args, **kwargs)
    optimizer.found_inf, optimizer.grad_scale = found_inf, None  # type: ignore[attr-defined]
    try:
        return optimizer.step(*args, **kwargs)
    finally:
        del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]
