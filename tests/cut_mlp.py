"""An MLP that PyTorch's own tensor parallelism has cut: what counters and emulated clocks are tried on."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor, nn


def tensor_parallel_step(x: Tensor) -> Callable[[], None]:
    """On each rank: forward and backward from width 64 to 128 and back, cut over all ranks. x (rows, 64)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model = nn.Sequential(nn.Linear(64, 128, bias=False), nn.ReLU(), nn.Linear(128, 64, bias=False))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return lambda: model(x).sum().backward()
