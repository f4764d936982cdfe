"""Memory-efficient attention: softmax(q k^T) v in tiles, which never holds the table of scores.

The softmax of a row can be computed as its scores come in, tile by tile, if two numbers of the row are kept: the
largest score so far and the sum of exponentials. Backward computes each tile of the softmax again, from the row's
log-sum-exp. Sources: online softmax (Milakov and Gimelshein, arXiv 1805.02867), FlashAttention (Dao et al., 2205.14135),
FlashAttention-2 (Dao, 2307.08691), whose order of loops this is.

Saved for backward: q, k, v, the output, and one number a query. Live besides: a few tiles, whatever the length. The plain
form saves queries x keys probabilities for each head. The price is one matrix product more: 14 q k d FLOP and not 12.

Shape suffixes: L queries, S keys, E elements of a head (of q and k), V of a value; "..." is (batch,) or (batch, heads).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """softmax(scale q k^T) v as one writes it down: holds all L x S scores. Arguments as `memory_efficient_attention`'s."""
    scale = check_inputs(q, k, v, scale)
    scores_LS = q @ k.mT * scale
    if causal:
        scores_LS = scores_LS.masked_fill(
            _future(slice(0, q.shape[-2]), slice(0, k.shape[-2]), q), -torch.inf
        )
    return scores_LS.softmax(-1) @ v


def memory_efficient_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    block_q: int = 128,
    block_k: int = 128,
) -> Tensor:
    """softmax(scale q k^T) v in tiles of block_q queries and block_k keys.

    q: (batch, queries, dim) or (batch, heads, queries, dim)
    k, v: the same with their own number of keys; v may have another dim. All of one dtype
    causal: query i sees keys 0 to i, as with F.scaled_dot_product_attention(is_causal=True)
    scale: of the scores; None is 1 / sqrt(dim)

    Returns (..., queries, dim of v) in q's dtype. Half-precision inputs are multiplied and added up in float32.
    Raises ValueError, with the shapes, where they do not fit.
    """
    scale = check_inputs(q, k, v, scale)
    if min(block_q, block_k) < 1:
        raise ValueError(f"a tile is at least 1 x 1; got block_q={block_q}, block_k={block_k}")
    return MemoryEfficientAttention.apply(q, k, v, causal, scale, block_q, block_k)


class MemoryEfficientAttention(torch.autograd.Function):
    """The two passes below as one differentiable operation, which saves q, k, v, its output and the log-sum-exp."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        scale: float,
        block_q: int,
        block_k: int,
    ) -> Tensor:
        ctx.options = causal, scale, block_q, block_k
        out, logsumexp = attention_forward(q, k, v, *ctx.options)
        ctx.save_for_backward(q, k, v, out, logsumexp)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        gradients = attention_backward(grad_out, *ctx.saved_tensors, *ctx.options)
        return *gradients, None, None, None, None


class MemoryEfficientCausalAttention(nn.Module):
    """q_BHSE, k_BKSE, v_BKSE -> (B, H, S, E), causal: in the place of a Transformer block's `attention.core`."""

    def forward(self, q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor) -> Tensor:
        group = q_BHSE.shape[1] // k_BKSE.shape[1]
        if group > 1:  # neighbouring query heads share one key-value head
            k_BKSE = k_BKSE.repeat_interleave(group, dim=1)
            v_BKSE = v_BKSE.repeat_interleave(group, dim=1)
        return memory_efficient_attention(q_BHSE, k_BKSE, v_BKSE, causal=True)


# --- the two passes -----------------------------------------------------------------------------------------------


def attention_forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, block_q: int, block_k: int
) -> tuple[Tensor, Tensor]:
    """The output (..., L, V), and the logarithm of each row's sum of exponentials (..., L), in float32 or float64."""
    L, S = q.shape[-2], k.shape[-2]
    out_LV = q.new_empty(*q.shape[:-1], v.shape[-1])
    logsumexp_L = q.new_empty(q.shape[:-1], dtype=_wide(q))
    with _no_autocast(q):
        for rows in _tiles(L, block_q):
            q_tile = q[..., rows, :].to(_wide(q)) * scale
            largest = q_tile.new_full((*q_tile.shape[:-1], 1), -torch.inf)
            total = torch.zeros_like(largest)
            weighted = q_tile.new_zeros(*q_tile.shape[:-1], v.shape[-1])
            # With a causal mask, tiles right of the diagonal are all zero: no row ever looks at them.
            for columns in _tiles(min(S, rows.stop) if causal else S, block_k):
                scores = q_tile @ k[..., columns, :].to(_wide(q)).mT
                if causal and columns.stop > rows.start + 1:
                    scores.masked_fill_(_future(rows, columns, q), -torch.inf)
                before, largest = largest, torch.maximum(largest, scores.amax(-1, keepdim=True))
                exponentials = scores.sub_(largest).exp_()
                # What was added up so far was relative to a smaller maximum.
                correction = (before - largest).exp_()
                total.mul_(correction).add_(exponentials.sum(-1, keepdim=True))
                weighted.mul_(correction).add_(exponentials @ v[..., columns, :].to(_wide(q)))
            out_LV[..., rows, :] = weighted / total
            logsumexp_L[..., rows] = (largest + total.log()).squeeze(-1)
    return out_LV, logsumexp_L


def attention_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp_L: Tensor,
    causal: bool,
    scale: float,
    block_q: int,
    block_k: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v. Each tile of probabilities is made again: exp(score - log-sum-exp), no second maximum."""
    L, S = q.shape[-2], k.shape[-2]
    # Each block of keys adds to the queries' gradient; its own gradients are finished one after the other.
    grad_q = torch.zeros_like(q, dtype=_wide(q))
    grad_k, grad_v = torch.empty_like(k), torch.empty_like(v)
    with _no_autocast(q):
        # Row sums of probabilities * their gradients. Since out = probabilities @ v, no score is needed for them.
        delta_L1 = _row_dot(grad_out, out, block_q)
        for columns in _tiles(S, block_k):
            k_tile, v_tile = (x[..., columns, :].to(_wide(q)) for x in (k, v))
            sum_k, sum_v = torch.zeros_like(k_tile), torch.zeros_like(v_tile)
            for rows in _tiles(L, block_q):
                if causal and rows.stop <= columns.start:
                    continue  # these queries come before all of these keys
                q_tile = q[..., rows, :].to(_wide(q)) * scale
                grad_tile = grad_out[..., rows, :].to(_wide(q))
                p_tile = (q_tile @ k_tile.mT).sub_(logsumexp_L[..., rows, None])
                if causal and columns.stop > rows.start + 1:
                    p_tile.masked_fill_(_future(rows, columns, q), -torch.inf)
                p_tile.exp_()
                sum_v += p_tile.mT @ grad_tile
                # Through the softmax: p * (gradient of p - its mean over the row, weighted by p).
                grad_scores = (grad_tile @ v_tile.mT).sub_(delta_L1[..., rows, :]).mul_(p_tile)
                sum_k += grad_scores.mT @ q_tile
                grad_q[..., rows, :] += grad_scores @ k_tile
            grad_k[..., columns, :], grad_v[..., columns, :] = sum_k, sum_v
    return grad_q.mul_(scale).to(q.dtype), grad_k, grad_v


# --- small things -------------------------------------------------------------------------------------------------


def _tiles(length: int, block: int) -> Iterator[slice]:
    """Slices of `block` that cover `length`; the last may be shorter."""
    return (slice(start, min(start + block, length)) for start in range(0, length, block))


def _future(rows: slice, columns: slice, like: Tensor) -> Tensor:
    """True where the key comes after the query: a mask of one tile."""
    query = torch.arange(rows.start, rows.stop, device=like.device)
    key = torch.arange(columns.start, columns.stop, device=like.device)
    return key > query[:, None]


def _wide(q: Tensor) -> torch.dtype:
    """What sums are held in: float32, or float64 where the inputs are."""
    return torch.promote_types(q.dtype, torch.float32)


def _row_dot(a: Tensor, b: Tensor, block: int) -> Tensor:
    """Each row's dot product, (..., L, 1), tile by tile so that no wide copy of a whole tensor is made."""
    result = a.new_empty(*a.shape[:-1], 1, dtype=_wide(a))
    for rows in _tiles(a.shape[-2], block):
        product = a[..., rows, :].to(_wide(a)) * b[..., rows, :].to(_wide(a))
        result[..., rows, :] = product.sum(-1, keepdim=True)
    return result


def _no_autocast(q: Tensor) -> Any:
    """Products of float32 tiles stay float32: autocast would round the scores."""
    return torch.autocast(q.device.type, enabled=False)


def check_inputs(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> float:
    """Raises ValueError if the three do not fit together; else the scale, 1 / sqrt(dim) by default."""
    shapes = f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.dim() not in (3, 4) or k.dim() != q.dim() or v.dim() != q.dim():
        raise ValueError(
            f"q, k and v are (batch, length, dim) or (batch, heads, length, dim), all alike; {shapes}"
        )
    if k.shape[:-2] != q.shape[:-2] or v.shape[:-2] != q.shape[:-2]:
        hint = " (grouped queries: k.repeat_interleave(group, dim=1))" if q.dim() == 4 else ""
        raise ValueError(f"q, k and v have the same batch and heads{hint}; {shapes}")
    if q.shape[-1] != k.shape[-1] or q.shape[-1] == 0:
        raise ValueError(
            f"a query is multiplied with a key, so both have the same dim, at least 1; {shapes}"
        )
    if k.shape[-2] != v.shape[-2] or k.shape[-2] == 0:
        raise ValueError(f"each key has its value, and there is at least one; {shapes}")
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        raise ValueError(
            f"q, k and v have one floating-point dtype; got {q.dtype}, {k.dtype} and {v.dtype}"
        )
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k and v are on one device; got {q.device}, {k.device} and {v.device}")
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale
