"""Collectives that gradients go back through: the backward of each collective is another one.

A collective copies and adds, so it is linear: y = A x over the values of all ranks together, and the gradient goes
back through A transposed. A copy becomes a sum, a sum a copy, and who sent receives.

    forward          backward
    all_gather       reduce_scatter       every rank's gradient of my part comes back to me, summed
    reduce_scatter   all_gather
    all_reduce       all_reduce
    all_to_all       all_to_all           with the split sizes exchanged
    broadcast        reduce               to the root; the others' inputs were not used: zero
    reduce           broadcast            from the root

The loss here is the sum of all ranks' losses, as in expert parallelism: backward() on each rank starts from its own
term. (Where all ranks compute the same loss, as in tensor parallelism, this counts it p times.
dtcourse.tensor_parallel.mappings counts it once: its four functions are for tensors that all ranks hold alike, or hold
slices of.) Functions return a new tensor; the input stays as it is. They can be differentiated again.
Every rank has to take part in backward, and in the same order.

    y = autograd.all_gather(x)                          # over the ring
    y = autograd.all_reduce(x, using=torch.distributed) # over whatever backend the group has

Bytes: as the collective that is named. Memory: nothing is kept for backward but sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from dtcourse import torch_private
from dtcourse.collectives import checks, p2p, pairwise, ring, tree
from dtcourse.collectives.reduce_ops import name_of
from dtcourse.plural import plural


def all_reduce(
    x: Tensor, op: Any = ReduceOp.SUM, group: Any = None, using: ModuleType = ring
) -> Tensor:
    """The sum (or AVG) of all ranks' x, on every rank. Same shape as x.

    using: the module whose all_reduce is called, ours or torch.distributed
    """
    return AllReduce.apply(x, _linear(op), group, using)


def all_gather(x: Tensor, group: Any = None, using: ModuleType = ring) -> Tensor:
    """All ranks' x, one after the other along dim 0: (n, ...) gives (p n, ...)."""
    _has_rows(x, "all_gather")
    return AllGather.apply(x, group, using)


def reduce_scatter(
    x: Tensor, op: Any = ReduceOp.SUM, group: Any = None, using: ModuleType = ring
) -> Tensor:
    """Part r (of p, along dim 0) of the sum (or AVG) of all ranks' x, on rank r: (p n, ...) gives (n, ...)."""
    _has_rows(x, "reduce_scatter")
    ranks = p2p.size(group)
    if x.shape[0] % ranks:
        raise ValueError(
            f"reduce_scatter: {plural(x.shape[0], 'row')} cannot be split evenly over {plural(ranks, 'rank')}"
        )
    return ReduceScatter.apply(x, _linear(op), group, using)


def all_to_all(
    x: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    using: ModuleType = pairwise,
) -> Tensor:
    """Rows of x to each rank in turn, and what came from each:
    sum(input_split_sizes) rows give sum(output_split_sizes).

    The sizes count rows along dim 0, one a rank; None splits evenly.
    """
    _has_rows(x, "all_to_all")
    sends = checks.split_sizes("all_to_all", group, x, input_split_sizes, "input_split_sizes")
    receives = list(output_split_sizes) if output_split_sizes else sends
    if not output_split_sizes and input_split_sizes:
        raise ValueError(
            "all_to_all: with input_split_sizes, output_split_sizes are needed as well"
        )
    return AllToAll.apply(x, receives, sends, group, using)


def broadcast(x: Tensor, src: int = 0, group: Any = None, using: ModuleType = tree) -> Tensor:
    """Rank src's x on every rank (src: a global rank). The others' x only says shape and dtype."""
    return Broadcast.apply(x, checks.root(group, src, None, "src"), group, using)


def reduce(x: Tensor, dst: int = 0, group: Any = None, using: ModuleType = tree) -> Tensor:
    """The sum of all ranks' x on rank dst (a global rank), zeros on the others."""
    return Reduce.apply(x, checks.root(group, dst, None, "dst"), group, using)


def _has_rows(x: Tensor, name: str) -> None:
    if x.dim() == 0:
        raise ValueError(
            f"{name} joins or splits along dim 0, and a scalar has none: use x.view(1)"
        )


def _linear(op: Any) -> Any:
    if name_of(op) not in ("SUM", "AVG"):
        raise ValueError(f"gradients go back through SUM and AVG, not through {name_of(op)}")
    return op


def collective(using: ModuleType, name: str) -> Callable[..., Any]:
    """The module's collective of that name, under whichever name its version has.
    Raises ValueError where it has none.
    """
    found = torch_private.collective(using, name)
    if found is None:
        raise ValueError(f"{using.__name__} has no {name}: pass using= a module that has")
    return found


def _averaged(y: Tensor, op: Any, group: Any) -> Tensor:
    """The sum made an average where that was asked for: torch's backends do not all have AVG."""
    return y.div_(p2p.size(group)) if name_of(op) == "AVG" else y


class AllReduce(torch.autograd.Function):
    """Backward of a sum for all: the sum of all ranks' gradients, for all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, op: Any, group: Any, using: ModuleType) -> Tensor:
        ctx.rest = (op, group, using)
        y = x.clone(memory_format=torch.contiguous_format)
        collective(using, "all_reduce")(y, op=ReduceOp.SUM, group=group)
        return _averaged(y, op, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return AllReduce.apply(grad, *ctx.rest), None, None, None


class AllGather(torch.autograd.Function):
    """Backward of a copy to every rank: the sum of what every rank says of my part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, using: ModuleType) -> Tensor:
        ctx.rest = (group, using)
        y = x.new_empty((p2p.size(group) * x.shape[0], *x.shape[1:]))
        collective(using, "all_gather_single")(y, x.contiguous(), group=group)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ReduceScatter.apply(grad, ReduceOp.SUM, *ctx.rest), None, None


class ReduceScatter(torch.autograd.Function):
    """Backward of a sum that one rank holds: its gradient, for every rank that was added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, op: Any, group: Any, using: ModuleType) -> Tensor:
        ctx.rest = (op, group, using)
        y = x.new_empty((x.shape[0] // p2p.size(group), *x.shape[1:]))
        collective(using, "reduce_scatter_single")(y, x.contiguous(), op=ReduceOp.SUM, group=group)
        return _averaged(y, op, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        op, group, using = ctx.rest
        whole = AllGather.apply(grad, group, using)
        if name_of(op) == "AVG":
            whole = whole / p2p.size(group)
        return whole, None, None, None


class AllToAll(torch.autograd.Function):
    """Backward of an exchange: the exchange back, with the sizes swapped."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, receives: list[int], sends: list[int], group: Any, using: ModuleType
    ) -> Tensor:
        ctx.rest = (sends, receives, group, using)  # exchanged
        y = x.new_empty((sum(receives), *x.shape[1:]))
        collective(using, "all_to_all_single")(y, x.contiguous(), receives, sends, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return AllToAll.apply(grad, *ctx.rest), None, None, None, None


class Broadcast(torch.autograd.Function):
    """Backward of copies of the root's value: their gradients' sum, on the root."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, root: int, group: Any, using: ModuleType) -> Tensor:
        ctx.rest = (root, group, using)
        y = x.clone(memory_format=torch.contiguous_format)
        collective(using, "broadcast")(y, group=group, group_src=root)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return Reduce.apply(grad, *ctx.rest), None, None, None


class Reduce(torch.autograd.Function):
    """Backward of a sum on the root: its gradient, for every rank."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, root: int, group: Any, using: ModuleType) -> Tensor:
        ctx.rest = (root, group, using)
        y = x.clone(memory_format=torch.contiguous_format)
        collective(using, "reduce")(y, group=group, group_dst=root)
        # What the others are left with is some partial sum, or none: nobody may depend on it.
        return y if p2p.rank(group) == root else y.zero_()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return Broadcast.apply(grad, *ctx.rest), None, None, None
