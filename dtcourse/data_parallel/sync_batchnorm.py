"""SyncBatchNorm by hand: mean and variance over the whole batch, not over each rank's part of it.

Batch normalisation mixes the samples of a batch, so it is the one common layer for which "each rank its part" gives
another result than one process. Forward all-reduces count, sum and sum of squares of each channel: 2 C + 1 numbers
(`batch_statistics`). Backward needs two sums of each channel over the whole batch again: 2 C numbers. Gradients of
weight and bias stay local: data parallelism averages them.

With xhat = (x - mean) / std, N samples in all and g = dL/dy:
    dL/dx = weight / std * (g - sum(g) / N - xhat * sum(g * xhat) / N)
Source: Ioffe and Szegedy, Batch Normalization (arXiv 1502.03167), section 3.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.parameters.deep_copies import KnowsGroups
from dtcourse.parameters.replicas import Group
from dtcourse.torch_private import BATCH_NORM, own_buffers

SLICE = 1 << 18  # values whose statistics are taken at once: 1 MiB of float32


def batch_statistics(
    x: torch.Tensor, group: Group = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean and biased variance of each channel, (C,), over the batches of all ranks, and how many values they are of.

    x: (batch, C, ...), of any batch size on each rank. One all-reduce: sums, sums of squares, the count.

    Mean and variance are taken in float32 at least, of SLICE values at a time, so that a bfloat16 batch is never
    converted as a whole; they are merged, over slices and over ranks, by their counts, and in double precision: the
    variance is a difference of two large sums then.
    """
    channels = x.shape[1]
    others = [d for d in range(x.dim()) if d != 1]
    wide = torch.promote_types(x.dtype, torch.float32)
    sums = torch.zeros(2 * channels + 1, dtype=torch.double, device=x.device)
    for part in x.split(max(1, SLICE * len(x) // max(1, x.numel()))) if x.numel() else ():
        variance, mean = (t.double() for t in torch.var_mean(part.to(wide), others, correction=0))
        values = part.numel() // channels
        sums[:channels] += values * mean
        sums[channels:-1] += values * (variance + mean.square())
        sums[-1] += values
    dist.all_reduce(sums, group=group)
    count = sums[-1]
    mean = sums[:channels] / count
    variance = (sums[channels:-1] / count - mean.square()).clamp_min(0)
    return mean, variance, count


def check_more_than_one_value(x: torch.Tensor, count: torch.Tensor) -> None:
    """Raises ValueError, on all ranks, where `count`, of all of them, leaves a variance of nothing: as nn.BatchNorm."""
    # A rank that has more knows it by itself, and waits for no GPU.
    if x.numel() // x.shape[1] <= 1 and count <= 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {list(x.shape)} here and "
            f"{int(count)} on all ranks together: take larger batches, or drop the last one"
        )


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
        eps: float, group: Group,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
        others = [d for d in range(x.dim()) if d != 1]
        mean, variance, count = batch_statistics(x, group)
        check_more_than_one_value(x, count)
        wide = torch.promote_types(x.dtype, torch.float32)
        inverse_std = (variance + eps).rsqrt()
        mean, variance, inverse_std = (t.to(wide) for t in (mean, variance, inverse_std))
        shape = [1, x.shape[1]] + [1] * (x.dim() - 2)
        y = _normalised(x, mean, inverse_std, shape)
        y = y if weight is None else y.mul_(weight.view(shape))
        y = y if bias is None else y.add_(bias.view(shape))
        context.save_for_backward(x, weight, mean, inverse_std, count)
        context.group, context.others, context.shape = group, others, shape
        context.mark_non_differentiable(mean, variance, count)
        return y.to(x.dtype), mean, variance, count

    @staticmethod
    def backward(context: Any, g: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
        x, weight, mean, inverse_std, count = context.saved_tensors
        shape, others = context.shape, context.others
        x_hat = _normalised(x, mean, inverse_std, shape)
        g = g.to(x_hat.dtype)
        bias_gradient = g.sum(others)
        weight_gradient = (g * x_hat).sum(others)
        # The two sums over the batch of all ranks; local ones go to weight and bias.
        sums = torch.cat([bias_gradient, weight_gradient])
        dist.all_reduce(sums, group=context.group)
        sum_g, sum_gx = (sums / count.to(sums.dtype)).chunk(2)
        scale = inverse_std if weight is None else inverse_std * weight
        x_gradient = scale.view(shape) * (g - sum_g.view(shape) - x_hat * sum_gx.view(shape))
        x_gradient = x_gradient.to(x.dtype)
        if weight is None:
            return x_gradient, None, None, None, None
        of_weight, of_bias = (t.to(weight.dtype) for t in (weight_gradient, bias_gradient))
        return x_gradient, of_weight, of_bias, None, None


def _normalised(
    x: torch.Tensor, mean: torch.Tensor, inverse_std: torch.Tensor, shape: list[int]
) -> torch.Tensor:
    """(x - mean) / std, in the statistics' dtype: in half precision the difference would be of rounded numbers."""
    return (x - mean.view(shape)).mul_(inverse_std.view(shape))


class SyncBatchNorm(KnowsGroups, BATCH_NORM):
    """nn.BatchNorm1d, 2d and 3d over the batches of all ranks of `group`. x: (batch, channels, ...)."""

    def __init__(self, num_features: int, *args: Any, group: Group = None, **keywords: Any) -> None:
        super().__init__(num_features, *args, **keywords)
        self.group = group

    @classmethod
    def convert(cls, module: nn.Module, group: Group = None) -> nn.Module:
        """The same module with every batch normalisation replaced; parameters and statistics are kept, not copied."""
        if isinstance(module, BATCH_NORM):
            new = cls(module.num_features, module.eps, module.momentum, module.affine,
                      module.track_running_stats, group=group)  # fmt: skip
            new.weight, new.bias = module.weight, module.bias
            own_buffers(new).update(own_buffers(module))
            return new.train(module.training)
        for name, child in module.named_children():
            setattr(module, name, cls.convert(child, group))
        return module

    def _check_input_dim(self, x: torch.Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(
                f"batch normalisation takes (batch, channels, ...); got shape {tuple(x.shape)}"
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises with the statistics of the whole batch in training, with the running ones in evaluation."""
        self._check_input_dim(x)
        if not self.training and self.track_running_stats:
            return super().forward(x)
        y, mean, variance, count = _Normalise.apply(x, self.weight, self.bias, self.eps, self.group)
        if self.training and self.track_running_stats:
            self._follow(mean, variance, count)
        return y

    @torch.no_grad()
    def _follow(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        assert self.num_batches_tracked is not None, "counted wherever statistics are tracked"
        assert self.running_mean is not None, "and kept"
        assert self.running_var is not None, "both of them"
        self.num_batches_tracked += 1
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1)).to(variance.dtype)
        for running, of_batch in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.copy_(running.to(of_batch.dtype).lerp(of_batch, momentum))
