"""Memory of any module's training step, predicted by running it on tensors that have no memory.

A FakeTensor (Paszke et al.'s PyTorch 2, section 4; torch._subclasses) has a shape, a dtype and a device, and no data. A
step on them costs microseconds an operator and no bytes, whatever the model's size; the tracker that measures real
steps (dtcourse.profiling.memory_tracker) counts the storages that there would be. So prediction and measurement are one
count, and differ only where an operator behaves differently.

    def batch():
        return torch.zeros(8, 1024, dtype=torch.int64), torch.zeros(8, 1024, dtype=torch.int64)

    tracker = trace(lambda: Transformer(PUBLISHED["GPT-2 XL"]), Transformer.loss, batch, optimizer=torch.optim.Adam)
    tracker.peak.bytes
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from dtcourse.profiling.memory_tracker import MemoryTracker
from dtcourse.torch_private import fake_tensors


def trace(
    build: Callable[[], nn.Module],
    loss: Callable[..., torch.Tensor],
    inputs: Callable[[], Iterable[torch.Tensor]],
    *,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    steps: int = 1,
    keep_gradients: bool = False,
) -> MemoryTracker:
    """Tracks the last of `steps` training steps of the model that `build` makes, without memory for it.

    build: makes the model; called where tensors are fake, so any size can be built
    loss: loss(model, *inputs) -> a scalar
    inputs: makes the batch
    optimizer: makes the optimizer from the parameters; None: forward and backward alone
    steps: 2 shows a step with the optimizer's state already there
    keep_gradients: gradients stay from step to step (accumulation); else they are None when a step begins

    ValueError where the model reads values (`.item()`, a branch on data), which fake tensors do not have.
    """
    if steps < 1:
        raise ValueError(f"steps is at least 1; got {steps}")
    with fake_tensors():
        model = build()
        updating = optimizer(model.parameters()) if optimizer else None
        batch = list(inputs())
        for _ in range(steps):
            if not keep_gradients:
                model.zero_grad()
            with MemoryTracker(model, updating, batch) as tracker:
                _step(model, loss, batch, updating)
    return tracker


def _step(
    model: nn.Module, loss: Callable[..., Any], batch: list[torch.Tensor], optimizer: Any
) -> None:
    try:
        loss(model, *batch).backward()
    except RuntimeError as error:
        if "data-dependent" in str(error).lower() or "DataDependent" in type(error).__name__:
            raise ValueError(
                f"{type(model).__name__} cannot be traced, since its step depends on the values of tensors "
                f"({str(error).splitlines()[0]}). Measure a real step instead: MemoryTracker."
            ) from error
        raise
    if optimizer is not None:
        optimizer.step()
