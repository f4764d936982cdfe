"""Asynchronous tensor parallelism: a region's products beside its messages, block by block round a ring.

A region whose input and output are cut by tokens begins with an all-gather and ends with a reduce-scatter. In one
piece, a product waits for all of its message, or a message for all of its product. In p blocks, the tokens of one rank
each, a block travels while another one is multiplied:

    gather_linear   all-gather, then x W_r       step s: multiplies block r - s, which travels on to rank r + 1
    linear_sum      h W_r, then reduce-scatter   step s: multiplies for rank r - 1 - s, as the sum so far comes

Each is the other's backward: dx is a product and a sum, dh a gather and a product. Weights' gradients are added up
block by block, as what they need comes past.

Sources: Wang et al., Overlap Communication with Dependent Computation via Decomposition (ASPLOS 2023), with this ring;
PyTorch's torch.ops.symm_mem.fused_all_gather_matmul and fused_matmul_reduce_scatter, with copies between GPUs.

Bytes per rank: as in one piece, (p - 1)/p of all tokens' activations a gather or a sum, in p - 1 messages.
gather_linear sends 1 of these forward and 2 backward (1 with gather_again=False), linear_sum 1 and 1. Two blocks more
are alive. Where a block's product takes P seconds and its message M, a pass takes P + (p - 1) max(P, M).
What it costs: p products of 1/p of the rows each, which fill a GPU less well than one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dtcourse import events
from dtcourse.collectives import p2p
from dtcourse.collectives.transfer import Transfer
from dtcourse.parameters.replicas import Group


def gather_linear(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
    group: Group = None,
    *,
    gather_again: bool = True,
) -> tuple[Tensor, ...]:
    """All ranks' tokens through each column-parallel layer: (tokens / p, ..., in) -> (tokens, ..., out_i) for each.

    x:            this rank's tokens, as many on each rank, along dim 0
    weights:      (out_i, in), as nn.Linear holds them; biases: (out_i,) or None for each
    gather_again: False: all tokens are kept for the weights' gradients, and not gathered again in backward
    """
    given = [None] * len(weights) if biases is None else biases
    return _GatherLinear.apply(group, gather_again, x, *weights, *given)


def linear_sum(h: Tensor, weight: Tensor, group: Group = None) -> Tensor:
    """This rank's tokens of the sum over all ranks of h W: (tokens, ..., in / p) -> (tokens / p, ..., out).

    weight: (out, in / p), as nn.Linear holds it. A bias is added afterwards, once.
    Raises ValueError where p does not divide the tokens.
    """
    ranks = p2p.size(group)
    if len(h) % ranks:
        raise ValueError(
            f"{len(h)} tokens along dim 0 cannot be given out to {ranks} ranks equally: pad them to "
            f"{-(-len(h) // ranks) * ranks}"
        )
    return _LinearSum.apply(group, h, weight)


# --- the two rings ------------------------------------------------------------------------------------------------


def gathered(own: Tensor, group: Group = None) -> Iterator[tuple[int, Tensor]]:
    """All ranks' blocks, as (whose, block), the own one first. A block travels on while the caller works with it."""
    rank, ranks = p2p.rank(group), p2p.size(group)
    block = own.contiguous()
    for step in range(ranks):
        moving = Transfer((block,), group, "all_gather") if step + 1 < ranks else None
        with events.span("product"):
            yield (rank - step) % ranks, block
        if moving is not None:
            (block,) = moving.wait()


def summed(product: Callable[[int], Tensor], group: Group = None) -> Tensor:
    """The sum over the ranks of product(this rank). Each rank makes the products for all, one beside each message."""
    rank, ranks = p2p.rank(group), p2p.size(group)
    with events.span("product"):
        total = product((rank - 1) % ranks)
    for step in range(1, ranks):
        moving = Transfer((total,), group, "reduce_scatter")
        with events.span("product"):
            part = product((rank - 1 - step) % ranks)
        (coming,) = moving.wait()
        total = coming.add_(part)
    return total


# --- with their gradients -----------------------------------------------------------------------------------------


class _GatherLinear(torch.autograd.Function):
    """apply(group, gather_again, x, weights..., biases...)"""

    @staticmethod
    def forward(
        ctx: Any, group: Group, gather_again: bool, x: Tensor, *parameters: Any
    ) -> tuple[Tensor, ...]:
        weights = parameters[: len(parameters) // 2]
        biases = parameters[len(weights) :]
        of = Rows(x, p2p.size(group))
        outputs = [x.new_empty(of.all, len(w)) for w in weights]
        kept = None if gather_again else x.new_empty(of.all, x.shape[-1])
        for whose, block in gathered(x, group):
            rows = block.view(of.own, -1)
            for y, w, b in zip(outputs, weights, biases, strict=True):
                mine = torch.mm(rows, w.T, out=y[of.block(whose)])
                if b is not None:
                    mine += b
            if kept is not None:
                kept[of.block(whose)] = rows
        ctx.rest = group, gather_again, of
        ctx.save_for_backward(x if kept is None else kept, *weights)
        return tuple(of.unflatten(y) for y in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, *weights), (group, gather_again, of) = ctx.saved_tensors, ctx.rest
        _, _, needs_x, *needs = ctx.needs_input_grad
        needs_weight, needs_bias = needs[: len(weights)], needs[len(weights) :]
        # A rank whose slice is all padding has rows without numbers, of which -1 cannot tell how many.
        rows = [g.reshape(of.all, g.shape[-1]) for g in grads]

        def for_rank(whose: int) -> Tensor:
            total = rows[0][of.block(whose)] @ weights[0]
            for g, w in zip(rows[1:], weights[1:], strict=True):
                total.addmm_(g[of.block(whose)], w)
            return total

        grad_x = summed(for_rank, group).view(of.shape) if needs_x else None
        grad_weights: list[Tensor | None] = [None] * len(weights)
        wanted = [i for i, needed in enumerate(needs_weight) if needed]
        if wanted and not gather_again:
            for i in wanted:
                grad_weights[i] = rows[i].T @ x
        elif wanted:
            sums = {i: torch.zeros_like(weights[i]) for i in wanted}
            for whose, block in gathered(x, group):
                for i, total in sums.items():
                    total.addmm_(rows[i][of.block(whose)].T, block.view(of.own, -1))
            for i, total in sums.items():
                grad_weights[i] = total
        grad_biases = [g.sum(0) if n else None for g, n in zip(rows, needs_bias, strict=True)]
        return None, None, grad_x, *grad_weights, *grad_biases


class _LinearSum(torch.autograd.Function):
    """apply(group, h, weight)"""

    @staticmethod
    def forward(ctx: Any, group: Group, h: Tensor, weight: Tensor) -> Tensor:
        ranks = p2p.size(group)
        of = Rows(h[: len(h) // ranks], ranks)
        rows = h.reshape(of.all, h.shape[-1])
        ctx.rest = group, of, h.shape
        ctx.save_for_backward(rows, weight)
        y = summed(lambda whose: rows[of.block(whose)] @ weight.T, group)
        return y.view(*of.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (rows, weight), (group, of, shape) = ctx.saved_tensors, ctx.rest
        _, needs_h, needs_weight = ctx.needs_input_grad
        grad_h = torch.empty_like(rows) if needs_h else None
        grad_weight = torch.zeros_like(weight) if needs_weight else None
        for whose, block in gathered(grad, group):
            here, coming = of.block(whose), block.view(of.own, -1)
            if grad_h is not None:
                torch.mm(coming, weight, out=grad_h[here])
            if grad_weight is not None:
                grad_weight.addmm_(coming.T, rows[here])
        return None, None if grad_h is None else grad_h.view(shape), grad_weight


class Rows:
    """Tokens and what is between them and the last dim, as rows: how many there are, and which are one rank's."""

    def __init__(self, own: Tensor, ranks: int) -> None:
        self.shape = own.shape
        self.own = own[..., 0].numel()
        self.all, self.tokens = self.own * ranks, len(own) * ranks

    def block(self, whose: int) -> slice:
        """The rows of a rank's tokens."""
        return slice(whose * self.own, (whose + 1) * self.own)

    def unflatten(self, rows: Tensor) -> Tensor:
        """All rows, with the tokens' other dims: (tokens, ..., numbers)."""
        return rows.view(self.tokens, *self.shape[1:-1], rows.shape[-1])
