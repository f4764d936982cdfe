"""The gradients that a loss scaler looks at and divides: those of an optimizer's parameters."""

from __future__ import annotations

import torch
from torch.optim import Optimizer


def gradients_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """The values of all gradients. A sparse one's duplicates are added first: their sum may overflow."""
    gradients = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            if parameter.grad.dtype == torch.float16:
                raise ValueError(
                    "a gradient is float16: divided by the scale it would vanish again. Keep the parameters in "
                    "float32 under autocast, or wrap the optimizer in MasterWeights"
                )
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
                gradients.append(parameter.grad.values())
            else:
                gradients.append(parameter.grad)
    return gradients
