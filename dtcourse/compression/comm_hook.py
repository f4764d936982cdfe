"""Compression for DistributedDataParallel, ours and PyTorch's: what happens to a bucket in place of the all-reduce.

    state = CompressionState(TopK(0.01))
    model.register_comm_hook(state, compression_hook)

With error feedback, what was left out of a parameter's gradient stays with that parameter: buckets are built anew after the
first step, when the order of the gradients is known, and a parameter may find itself in another one. What was left out of
the sum (PARTS) belongs to a place in a bucket, and is given up then, once.
"""

# No `from __future__ import annotations` here: PyTorch's DDP looks at the hook's annotations, which have to be types.

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.compression.averaging import Residuals, average
from dtcourse.compression.compressor import Compressor
from dtcourse.parameters.replicas import Group


class CompressionState:
    """What the hook keeps: one for each model.

    compressor:     the method
    group:          the ranks to average over, the model's
    error_feedback: whether what is left out is sent later
    """

    def __init__(
        self, compressor: Compressor, group: Group = None, *, error_feedback: bool = True
    ) -> None:
        self.compressor, self.group, self.error_feedback = compressor, group, error_feedback
        self.left_out: dict[Tensor, Tensor] = {}  # by parameter: of its gradient, flat
        self.left_out_of_parts: dict[tuple[int, ...], Tensor] = {}  # by a bucket's parameters

    def average(self, bucket: Any) -> Tensor:
        """The mean of a bucket's gradients over the ranks: (n,), float32."""
        x = bucket.buffer().float()
        if not self.error_feedback:
            return average(x, self.compressor, self.group)
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        residuals = Residuals(self._of(parameters, x), self._of_part(key))
        mean = average(x, self.compressor, self.group, residuals)
        assert residuals.own is not None, "there is error feedback"
        each = residuals.own.split([p.numel() for p in parameters])
        self.left_out.update(zip(parameters, each, strict=True))
        if residuals.part is not None:
            self.left_out_of_parts[key] = residuals.part
        return mean

    def _of(self, parameters: list[Tensor], like: Tensor) -> Tensor:
        nothing = like.new_zeros
        return torch.cat([self.left_out.get(p, nothing(p.numel())) for p in parameters])

    def _of_part(self, key: tuple[int, ...]) -> Tensor | None:
        if key not in self.left_out_of_parts:
            for other in [k for k in self.left_out_of_parts if set(k) & set(key)]:
                del self.left_out_of_parts[other]  # a bucket of before
        return self.left_out_of_parts.get(key)


def compression_hook(
    state: CompressionState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """register_comm_hook's hook. The Future has its value: the mean is made before the hook returns."""
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer().copy_(state.average(bucket)))
    return future
