"""Between a rank's tokens and all of them: where a parallel region begins and where it ends.

    function   forward                        backward
    gather     all-gather of tokens           reduce-scatter    tokens enter a parallel region (g in the paper)
    sum_cut    reduce-scatter of sums         all-gather        partial sums leave it, cut (g-bar)

Source: Korthikanti et al. 2205.05198, section 4.2.2. Bytes per rank of t: (t - 1)/t n each, for n bytes of all tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.parameters.replicas import Group
from dtcourse.tensor_parallel.mappings import start_gather
from dtcourse.torch_private import reduce_scatter_single

DIM = 1  # tokens, in (batch, tokens, width)


def gather(x: Tensor, group: Group = None) -> Tensor:
    """(B, S/t, D) -> (B, S, D). Each rank uses all tokens for a part of the work,
    so gradients are summed on the way back.
    """
    return _Gather.apply(x, group)


def sum_cut(x: Tensor, group: Group = None) -> Tensor:
    """(B, S, D), a part of a sum -> (B, S/t, D), this rank's tokens of the sum over the ranks."""
    return _SumCut.apply(x, group)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        y, _ = start_gather(x, DIM, group)
        return y.movedim(0, DIM)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _SumCut.apply(grad, ctx.group), None


class _SumCut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        y, _ = start_sum(x.movedim(DIM, 0), group)
        return y.movedim(0, DIM)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Gather.apply(grad, ctx.group), None


def start_sum(x: Tensor, group: Group, async_op: bool = False) -> tuple[Tensor, Any]:
    """This rank's tokens of the sum of all ranks' x, tokens first: (S, B, D) -> (S/t, B, D)."""
    x = x.contiguous()
    y = x.new_empty((x.shape[0] // dist.get_world_size(group), *x.shape[1:]))
    return y, reduce_scatter_single(y, x, group=group, async_op=async_op)
