"""What is set for a whole process."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d as c10d

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


def groups_of_process() -> list[dist.ProcessGroup]:
    """All groups that this process is in, the default one among them."""
    return [group for group in c10d._world.pg_map if isinstance(group, dist.ProcessGroup)]


def set_timeout(group: dist.ProcessGroup | None, limit: timedelta) -> None:
    """How long a collective of this group may wait from now on."""
    c10d._set_pg_timeout(limit, group)


def flight_dump() -> bytes:
    """What torch's own flight recorder has (TORCH_FR_BUFFER_SIZE), pickled."""
    return torch._C._distributed_c10d._dump_fr_trace()  # type: ignore[attr-defined]
