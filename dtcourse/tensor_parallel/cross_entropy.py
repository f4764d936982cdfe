"""Cross-entropy of logits that are cut along the vocabulary: what it needs of the other ranks is three numbers a token.

    loss = log sum_v exp(z_v) - z_target

The largest logit (one all-reduce, MAX), then the sum of exponentials and the target's logit (one all-reduce, SUM; the
target is on one rank, the others add zero). Backward is softmax - onehot of a rank's own slice: no message at all.
Source: Megatron-LM, Shoeybi et al. 1909.08053, section 3, which fuses the output layer with the loss for this reason.

For N tokens, V words and p ranks: two all-reduces, of N + 1 and of 2 N numbers (3 N with label smoothing), where
gathering the logits sends N V; and V / p logits a token are held instead of V.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from dtcourse import streams, torch_private
from dtcourse.parameters.cuts import Sliced
from dtcourse.parameters.replicas import Group

REDUCTIONS = ("none", "mean", "sum")


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    group: Group = None,
    *,
    num_classes: int | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """F.cross_entropy of all ranks' logits together, the same on every rank.

    logits:      (..., V / p): this rank's slice of the classes, as a ColumnParallelLinear leaves them
    targets:     (...), integers below V, the same on all ranks
    num_classes: V, where p does not divide it and slices are unequal; default: p times this rank's
    the others:  torch's; "mean" is over the targets that are not ignore_index

    Half-precision logits are added up in float32, which is also the loss's dtype then.
    Raises ValueError where shapes or targets do not fit. Every rank calls it with the same targets.
    Of a GPU no value is read, since the host would wait for all that is queued there: a target that does not fit is a
    device-side assertion, as it is for F.cross_entropy.
    """
    size = dist.get_world_size(group)
    V = logits.shape[-1] * size if num_classes is None else num_classes
    shard = Sliced(0, V, group)
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} are for targets of shape {tuple(logits.shape[:-1])}; "
            f"got {tuple(targets.shape)}"
        )
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"reduction is one of {', '.join(map(repr, REDUCTIONS))}; got {reduction!r}"
        )
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing is between 0 and 1; got {label_smoothing}")
    ignored = targets == ignore_index
    wrong = ~ignored & ((targets < 0) | (targets >= V))
    if not streams.may_look(targets):
        torch_private.assert_later(~wrong.any(), f"a target is none of the {V} classes")
    elif wrong.any():
        raise ValueError(f"target {int(targets[wrong][0])} is none of the {V} classes")
    losses = _CrossEntropy.apply(logits, targets, ignored, shard, label_smoothing)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / (~ignored).sum()


class _CrossEntropy(torch.autograd.Function):
    """One loss a target, 0 where it is ignored."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, ignored: Tensor, shard: Sliced, smoothing: float
    ) -> Tensor:
        z = logits.to(torch.promote_types(logits.dtype, torch.float32))
        # A rank whose slice is all padding has no largest logit, and takes part all the same.
        largest = z.amax(-1) if z.shape[-1] else z.new_full(targets.shape, -torch.inf)
        # One number more says whether some rank's slice does not fit, so that all raise and none waits for ever.
        fits = logits.shape[-1] == shard.used
        misfit = largest.new_full((1,), not fits)
        together = torch.cat([largest.flatten(), misfit])
        _all_reduce(together, dist.ReduceOp.MAX, shard)
        if fits and not streams.may_look(together):
            torch_private.assert_later(together[-1] == 0, "another rank's slice does not fit")
        elif not fits or together[-1]:
            raise ValueError(
                f"{shard.size} classes on {shard.parts} ranks are {shard.length} on "
                f"each, and what is left on the last; rank {shard.part} has {shard.used} of them, and logits of "
                f"shape {tuple(logits.shape)}"
            )
        largest = together[:-1].view(targets.shape)
        shifted = z - largest.unsqueeze(-1)
        local = targets - shard.start
        elsewhere = ignored | (local < 0) | (local >= shard.used)
        local = local.masked_fill(elsewhere, 0).unsqueeze(-1)
        of_target = shifted.gather(-1, local).squeeze(-1) if shard.used else largest
        parts = [shifted.exp().sum(-1), of_target.masked_fill(elsewhere, 0.0)]
        if smoothing:
            parts.append(shifted.sum(-1))
        sums = torch.stack(parts)
        _all_reduce(sums, dist.ReduceOp.SUM, shard)
        logsumexp = sums[0].log()
        # smoothing: a share of each target goes to all V classes alike.
        losses = logsumexp - (1 - smoothing) * sums[1]
        if smoothing:
            losses = losses - smoothing / shard.size * sums[2]
        ctx.save_for_backward(logits, largest + logsumexp, local, elsewhere, ignored)
        ctx.shard, ctx.smoothing = shard, smoothing
        return losses.masked_fill(ignored, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, logsumexp, local, elsewhere, ignored = ctx.saved_tensors
        shard, smoothing = ctx.shard, ctx.smoothing
        grad = grad.masked_fill(ignored, 0.0).unsqueeze(-1)
        grad_logits = (logits.to(grad.dtype) - logsumexp.unsqueeze(-1)).exp_()
        if smoothing:
            grad_logits -= smoothing / shard.size
        if shard.used:
            at_target = (smoothing - 1) * (~elsewhere).unsqueeze(-1).to(grad.dtype)
            grad_logits.scatter_add_(-1, local, at_target)
        return grad_logits.mul_(grad).to(logits.dtype), None, None, None, None


def _all_reduce(x: Tensor, op: Any, shard: Sliced) -> None:
    if dist.get_world_size(shard.group) > 1:
        dist.all_reduce(x, op=op, group=shard.group)
