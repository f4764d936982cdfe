"""Attention in tiles: the two passes of softmax(q k^T) v that never hold the table of scores.

What more than one technique computes attention with: memory/attention.py makes one operation of them on one device, and
sequence_parallel calls them for one block of keys after the other, as the blocks come in. The mathematics and the
sources are told in memory/attention.py.

Shape suffixes: L queries, S keys, E elements of a head (of q and k), V of a value; "..." is any leading dims.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


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
    """The gradients of q, k and v. Each tile of probabilities is made again: exp(score -
    log-sum-exp), no second maximum.
    """
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
