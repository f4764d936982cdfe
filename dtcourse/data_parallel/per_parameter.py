"""One step further: each all-reduce starts from a hook, as soon as its gradient is ready, while backward goes on.

Backward produces gradients from the last layer to the first, one after another, and needs the network for none of
them: so the network can work while the next one is computed. What is still wrong is the number of messages: a
transformer has hundreds of small parameters, and each pays the latency of an all-reduce. Buckets mend that (ddp.py).

Bytes a rank sends: as in naive.py. Exposed: what is still under way when backward ends.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.parameters.backward import on_gradient
from dtcourse.parameters.deep_copies import RefusesCopies
from dtcourse.parameters.replicas import Group, broadcast_model
from dtcourse.parameters.slices import require_replicas


class PerParameterDataParallel(RefusesCopies, nn.Module):
    """Wraps `module`; its gradients are averaged by `synchronize()`, which must be called after each backward."""

    def __init__(self, module: nn.Module, group: Group = None) -> None:
        super().__init__()
        self.module, self.group = module, group
        self._pending: list[tuple[dist.Work, torch.Tensor]] = []
        require_replicas(module.named_parameters(), group, type(self).__name__)
        broadcast_model(module, group=group)
        for parameter in module.parameters():
            if parameter.requires_grad:
                on_gradient(parameter, self._start)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Runs the wrapped module."""
        return self.module(*inputs, **keywords)

    def _start(self, parameter: torch.Tensor) -> None:
        """Backward has just finished this parameter's gradient."""
        gradient = parameter.grad
        assert gradient is not None, "the hook runs after it has been accumulated"
        work = dist.all_reduce(gradient, group=self.group, async_op=True)
        self._pending.append((work, gradient))

    def synchronize(self) -> None:
        """Waits for what is under way. Afterwards every gradient is the mean over the ranks."""
        size = dist.get_world_size(self.group)
        for work, gradient in self._pending:
            work.wait()
            gradient /= size
        self._pending.clear()
