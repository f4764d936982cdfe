"""What is set for a whole process."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dtcourse.torch_private.backward import saves_through_hooks


def settings_of_process() -> tuple[Any, ...]:
    """What changes all that is computed from now on: modes, defaults, numbers of hooks."""
    hooks = [
        len(value) if hasattr(value, "__len__") else value
        for name, value in sorted(vars(nn.modules.module).items())
        if name.startswith("_global_")
    ]
    return (
        hooks,
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
        saves_through_hooks(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_anomaly_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_deterministic_debug_mode(),
        torch.get_float32_matmul_precision(),
    )


def flight_dump() -> bytes:
    """What torch's own flight recorder has (TORCH_FR_BUFFER_SIZE), pickled."""
    return torch._C._distributed_c10d._dump_fr_trace()  # type: ignore[attr-defined]
