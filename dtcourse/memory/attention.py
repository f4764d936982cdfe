"""Memory-efficient attention: softmax(q k^T) v in tiles, which never holds the table of scores.

The softmax of a row can be computed as its scores come in, tile by tile, if two numbers of the row are kept: the
largest score so far and the sum of exponentials. Backward computes each tile of the softmax again, from the row's
log-sum-exp. Sources: online softmax (Milakov and Gimelshein, arXiv 1805.02867), FlashAttention (Dao et al.,
2205.14135), FlashAttention-2 (Dao, 2307.08691), whose order of loops this is.

Saved for backward: q, k, v, the output, and one number a query. Live besides: a few tiles, whatever the length. The
plain form saves queries x keys probabilities for each head. The price is one matrix product
more: 14 q k d FLOP and not 12.

Which tiles: 128 x 128 are the fastest on a CPU, causal, in heads of 64. On one thread they take 0.95, 1.07 and 1.21 of
the processor time of PyTorch's fused kernel for 512, 1,024 and 2,048 tokens (benchmarks/attention_tiles.py). Smaller
tiles are more operations (64: 0.97, 1.22, 1.39); larger ones compute more of what the mask hides (256: 1.21, 1.23,
1.28; 512: 1.90, 1.81, 1.68). What is left: each step on a tile (maximum, exponential, sum, product) is an operation of
PyTorch's, with a pass over memory of its own, where the fused kernel does them in one.

Shape suffixes: L queries, S keys, E elements of a head (of q and k), V of a value; "..." is (batch,) or (batch, heads).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dtcourse.attention import attention_backward, attention_forward


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """softmax(scale q k^T) v as one writes it down: holds all L x S scores.
    Arguments as `memory_efficient_attention`'s.
    """
    scale = check_inputs(q, k, v, scale)
    scores_LS = q @ k.mT * scale
    if causal:
        query, key = (torch.arange(x.shape[-2], device=q.device) for x in (q, k))
        scores_LS = scores_LS.masked_fill(key > query[:, None], -torch.inf)
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
    if min(block_q, block_k) < 1:
        raise ValueError(f"a tile is at least 1 x 1; got block_q={block_q}, block_k={block_k}")
    return MemoryEfficientAttention.apply(q, k, v, causal, scale, block_q, block_k)


class MemoryEfficientAttention(torch.autograd.Function):
    """The two passes of dtcourse/attention.py as one differentiable operation, which saves q, k, v,
    its output and the log-sum-exp.

    apply(q, k, v, causal, ...) takes the arguments of `memory_efficient_attention` by position, with the same defaults.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool = False,
        scale: float | None = None,
        block_q: int = 128,
        block_k: int = 128,
    ) -> Tensor:
        ctx.options = causal, check_inputs(q, k, v, scale), block_q, block_k
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
