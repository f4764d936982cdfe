"""Between tensors that every rank holds whole and tensors that are cut: six functions, three pairs of transposes.

    function        forward                   backward
    copy            nothing                   all-reduce       replicated x enters a parallel region
    reduce          all-reduce                nothing          partial sums leave it
    gather          all-gather along a dim    own slice        slices become a replicated tensor
    scatter         own slice along a dim     all-gather       a replicated tensor is cut
    enter           all-gather along a dim    reduce-scatter   slices enter a parallel region: gather, then copy
    reduce_scatter  reduce-scatter            all-gather       partial sums leave it, cut: reduce, then scatter

The functions of a pair are each other's backward. Megatron-LM calls the first two f and g (Shoeybi et al. 1909.08053,
section 3), and the last two g and g-bar (Korthikanti et al. 2205.05198, section 4.2.2). An all-reduce is a
reduce-scatter and an all-gather, so what is cut between two regions costs the same bytes as what is whole there.

Whose loss is it? What comes after the region is computed on every rank alike, the loss too, and here it is counted
*once*: a replicated tensor is one tensor, of which each rank holds a copy, and backward starts with a gradient of 1
on every rank. So the gradient of a replicated tensor is whole on every rank, and reduce hands it on as it is.
`collectives.autograd` counts the *sum* of all ranks' losses, because there each rank's tensor is a variable of its own.
For a loss that p ranks compute alike that sum is p times as large: its all_reduce sums the p equal gradients in
backward, and all gradients come out p times too large. Divided by p, the two agree; a test says so. What is
*different* on each rank (rows of a batch, tokens of an expert) belongs to `collectives.autograd`.

Bytes: as the collective named, (p - 1)/p n for a gather or a reduce-scatter, twice that for an all-reduce, none on one
rank. Nothing is kept for backward. They may be differentiated again. Every rank of the group calls them in one order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.parameters.replicas import Group
from dtcourse.torch_private import all_gather_single, reduce_scatter_single


def copy(x: Tensor, group: Group = None) -> Tensor:
    """x itself; its gradient is summed over the ranks, each of which used x for a part of the work."""
    return x if dist.get_world_size(group) == 1 else _Copy.apply(x, group)


def reduce(x: Tensor, group: Group = None) -> Tensor:
    """The sum of all ranks' x, a new tensor; its gradient, the same on every rank, is also x's."""
    return x if dist.get_world_size(group) == 1 else _Reduce.apply(x, group)


def gather(x: Tensor, dim: int = -1, group: Group = None) -> Tensor:
    """All ranks' slices, of equal shape, one after the other along `dim`; each gets its part of the gradient back."""
    return x if dist.get_world_size(group) == 1 else _Gather.apply(x, _counted(x, dim), group)


def scatter(x: Tensor, dim: int = -1, group: Group = None) -> Tensor:
    """This rank's slice of x along `dim`, in memory of its own; the gradient is put together from all ranks'.

    Raises ValueError where the dim does not divide.
    """
    dim = _cut_equally(x, dim, group)
    return x if dist.get_world_size(group) == 1 else _Scatter.apply(x, dim, group)


def enter(x: Tensor, dim: int = -1, group: Group = None) -> Tensor:
    """As gather, of what each rank then uses for a part of the work: gradients are summed on the way back."""
    return x if dist.get_world_size(group) == 1 else _Enter.apply(x, _counted(x, dim), group)


def reduce_scatter(x: Tensor, dim: int = -1, group: Group = None) -> Tensor:
    """This rank's slice along `dim` of the sum of all ranks' x. Raises ValueError where the dim does not divide."""
    dim = _cut_equally(x, dim, group)
    return x if dist.get_world_size(group) == 1 else _ReduceScatter.apply(x, dim, group)


def start_gather(x: Tensor, dim: int, group: Group, async_op: bool = False) -> tuple[Tensor, Any]:
    """All ranks' slices along `dim`, which is dim 0 of the result; and torch's work, where async_op.

    They arrive one after the other in memory, so that is where `dim` has to be meanwhile.
    """
    first = x.movedim(dim, 0).contiguous()
    y = first.new_empty((first.shape[0] * dist.get_world_size(group), *first.shape[1:]))
    return y, all_gather_single(y, first, group=group, async_op=async_op)


def start_sum(x: Tensor, group: Group, async_op: bool = False) -> tuple[Tensor, Any]:
    """This rank's part along dim 0 of the sum of all ranks' x; and torch's work, where async_op."""
    x = x.contiguous()
    y = x.new_empty((x.shape[0] // dist.get_world_size(group), *x.shape[1:]))
    return y, reduce_scatter_single(y, x, group=group, async_op=async_op)


def _cut_equally(x: Tensor, dim: int, group: Group) -> int:
    """The dim counted from the front. Raises ValueError where it does not divide over the group."""
    size, dim = dist.get_world_size(group), _counted(x, dim)
    if x.shape[dim] % size:
        raise ValueError(
            f"dim {dim} of a tensor of shape {tuple(x.shape)} cannot be cut into {size} equal slices: "
            f"{x.shape[dim]} is not a multiple of {size}"
        )
    return dim


def _counted(x: Tensor, dim: int) -> int:
    """The dim counted from the front."""
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"a tensor of shape {tuple(x.shape)} has no dim {dim}")
    return dim % x.dim()


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Reduce.apply(grad, ctx.group), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        y = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Copy.apply(grad, ctx.group), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Group) -> Tensor:
        ctx.rest = (dim, group)
        y, _ = start_gather(x, dim, group)
        return y.movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Scatter.apply(grad, *ctx.rest), None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Group) -> Tensor:
        ctx.rest = (dim, group)
        # A copy: a view would keep the whole of x alive.
        return x.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Gather.apply(grad, *ctx.rest), None, None


class _Enter(_Gather):
    """Forward as _Gather; the gradients of what all ranks used are added up."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _ReduceScatter.apply(grad, *ctx.rest), None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Group) -> Tensor:
        ctx.rest = (dim, group)
        y, _ = start_sum(x.movedim(dim, 0), group)
        return y.movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Enter.apply(grad, *ctx.rest), None, None
