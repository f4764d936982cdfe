"""Where in a forward or a backward the calling thread is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


def in_backward() -> bool:
    """Whether the calling thread is inside a backward pass (so also in hooks, and in what a checkpoint recomputes)."""
    return torch._C._current_graph_task_id() != -1


def backward_pass() -> int:
    """The number of the backward pass that the calling thread is inside of;
    a reentrant checkpoint runs one of its own.
    """
    return torch._C._current_graph_task_id()


def after_backward(callback: Callable[[], Any]) -> None:
    """Calls back when the whole backward pass that the calling thread is inside of is done."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)  # type: ignore[attr-defined]


def saves_through_hooks() -> bool:
    """Whether what a forward saves goes through torch.autograd.graph.saved_tensors_hooks, as in a checkpoint."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None  # type: ignore[attr-defined]


def gradient_hooks(parameter: torch.Tensor) -> list[Callable[..., Any]]:
    """What register_post_accumulate_grad_hook has set on a parameter."""
    return list((parameter._post_accumulate_grad_hooks or {}).values())  # type: ignore[attr-defined]


def comm_hooks_of(wrapper: DistributedDataParallel) -> list[Any]:
    """What register_comm_hook has set on PyTorch's wrapper."""
    return list(wrapper._comm_hooks)


def forward_of_torchs_wrapper() -> DistributedDataParallel | None:
    """PyTorch's wrapper whose forward is running; None outside of one."""
    return DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-any-return]
