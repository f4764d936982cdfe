"""Compression for DistributedDataParallel, ours and PyTorch's: what happens to a bucket in place of the all-reduce.

    state = CompressionState(TopK(0.01))
    model.register_comm_hook(state, compression_hook)

A bucket is compressed when it is full; what follows (its messages, the sum, the way back) goes on beside backward,
bucket after bucket, and backward waits for it at its end (background.py). So a step takes the longer of the two, as
without compression.

With error feedback, what was left out of a parameter's gradient stays with that parameter: buckets are built anew after
the first step, when the order of the gradients is known, and a parameter may find itself in another one. What was left
out of the sum (PARTS) belongs to a place in a bucket, and is given up then, once.
"""

# No `from __future__ import annotations` here: PyTorch's DDP looks at the hook's annotations, which have to be types.

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.compression.compressor import Compressor, Residuals, Rounds
from dtcourse.compression.wire.averaging import begin
from dtcourse.compression.wire.background import group_beside, in_background
from dtcourse.parameters.replicas import Group


class BucketAverage(Protocol):
    """What the hook asks of a state: CompressionState for vectors, PowerSGDState for matrices."""

    group: Group

    def begin(self, bucket: Any) -> Callable[[], Tensor]:
        """Compresses a bucket's gradients now; the function sends them and returns their mean: (n,)."""


class ModelParameters:
    """The parameters of the one model that a state is for: those that its first step has brought."""

    def __init__(self) -> None:
        self._shapes: dict[Tensor, torch.Size] = {}
        self._complete = False

    def check(self, bucket: Any) -> None:
        """Raises ValueError, on every rank, for a bucket of another model, or of one that has changed."""
        for parameter in bucket.parameters():
            shape = parameter.shape
            if self._shapes.get(parameter, None if self._complete else shape) != shape:
                before = self._shapes.get(parameter)
                raise ValueError(
                    f"this state has worked for a model of {len(self._shapes)} parameters, and one of shape "
                    f"{tuple(shape)} "
                    f"{'was not among them' if before is None else f'had the shape {tuple(before)}'}. What it keeps "
                    "belongs to that model: make a new state for each model, and for one that has changed"
                )
            self._shapes[parameter] = shape
        self._complete = self._complete or bucket.is_last()


class CompressionState:
    """What the hook keeps: one for each model.

    compressor:     the method
    group:          the ranks to average over, the model's
    error_feedback: whether what is left out is sent later
    """

    def __init__(
        self, compressor: Compressor | Rounds, group: Group = None, *, error_feedback: bool = True
    ) -> None:
        self.compressor, self.group, self.error_feedback = compressor, group, error_feedback
        self.left_out: dict[Tensor, Tensor] = {}  # by parameter: of its gradient, flat
        # By a bucket's parameters: of the part of the sum that this rank compresses again.
        self.left_out_of_parts: dict[tuple[int, ...], Residuals] = {}
        self._model = ModelParameters()

    def begin(self, bucket: Any) -> Callable[[], Tensor]:
        """Compresses a bucket's gradients; the function returns their mean over the ranks: (n,), of compressor.takes.

        Raises ValueError, on every rank, for a bucket of another model than before.
        """
        self._model.check(bucket)
        x, group = bucket.buffer().to(self.compressor.takes), group_beside(self.group)
        if not self.error_feedback:
            return begin(x, self.compressor, group)
        parameters = list(bucket.parameters())
        residuals = self._of_bucket(tuple(map(id, parameters)))
        residuals.own = self._of(parameters, x)
        average = begin(x, self.compressor, group, residuals)

        def finish() -> Tensor:
            mean = average()
            assert residuals.own is not None, "there is error feedback"
            each = residuals.own.split([p.numel() for p in parameters])
            self.left_out.update(zip(parameters, each, strict=True))
            residuals.own = None
            return mean

        return finish

    def reset(self) -> None:
        """Forgets what has been left out: after a step that was skipped, a jump in the weights, another loss scale."""
        self.left_out.clear()
        self.left_out_of_parts.clear()

    def _of(self, parameters: list[Tensor], like: Tensor) -> Tensor:
        nothing = like.new_zeros
        return torch.cat([self.left_out.get(p, nothing(p.numel())) for p in parameters])

    def _of_bucket(self, key: tuple[int, ...]) -> Residuals:
        if key not in self.left_out_of_parts:
            for other in [k for k in self.left_out_of_parts if set(k) & set(key)]:
                del self.left_out_of_parts[other]  # a bucket of before
        return self.left_out_of_parts.setdefault(key, Residuals())


def compression_hook(
    state: BucketAverage, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """register_comm_hook's hook. Its Future has the mean when the bucket's last message has come."""
    return in_background(state.begin(bucket), bucket.buffer(), state.group)
