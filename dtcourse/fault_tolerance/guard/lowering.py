"""Lowering the learning rate for good, whatever schedule computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def lowering(
    optimizer: torch.optim.Optimizer, factor: float, schedule: Any = None
) -> Callable[[], None]:
    """What multiplies the learning rate, and what the schedule (of torch.optim.lr_scheduler) computes it from.

    ValueError for a factor that is not between 0 and 1.
    """
    if not 0 < factor < 1:
        raise ValueError(f"a learning rate is lowered by a factor between 0 and 1; got {factor}")

    def lower() -> None:
        for group in optimizer.param_groups:
            for name in ("lr", "initial_lr"):
                if name in group:
                    group[name] *= factor
        if schedule is not None:
            schedule.base_lrs = [lr * factor for lr in schedule.base_lrs]

    return lower
