"""Ulysses: between attention and all the rest, an all-to-all turns a part of the sequence into a part of the heads.

1. Each of p ranks holds S/p tokens, all heads. Everything but attention works on them alone.
2. Heads do not look at each other. So before attention every rank sends every other one its tokens of that one's heads.
3. Each rank then has the whole sequence of H/p heads, and any attention kernel of one device does the rest, causal or
   not.
4. The output goes back the same way. Backward: the same four messages to each rank, in the other direction.

Source: DeepSpeed-Ulysses (Jacobs et al. 2309.14509), section 3.1.

Per rank, N = B S/p tokens of its own: four all-to-alls forward (queries, keys, values, output) and four backward, which
send (p - 1)/p N (2 H E + 2 K E) numbers each way, p - 1 messages an all-to-all: per rank less as p grows, where ring
attention's bytes stay. But heads must divide: no more than H ranks. Fewer key-value heads than ranks are sent as often
as ranks need them, as if there were p (grouped-query attention: Ainslie et al. 2305.13245).
Memory: q, k, v, output of the whole sequence for H/p heads, what the kernel keeps, and nothing besides.
Nothing overlaps: attention begins when the last message has come.

Shape suffixes: B batch, H heads, S tokens of the whole sequence, E elements of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from dtcourse.collectives import autograd
from dtcourse.parameters.replicas import Group
from dtcourse.sequence_parallel.order import CutCore
from dtcourse.sequence_parallel.ring_attention import check_shapes

Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]


def ulysses_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    group: Group = None,
    kernel: Kernel | None = None,
) -> Tensor:
    """softmax(scale q k^T) v over the whole sequence, for this rank's queries. All ranks of the group call it.

    q: (batch, heads, tokens, dim), as many neighbouring tokens on every rank, in the ranks' order (`order.shard`)
    k, v: the same, or with fewer heads, each of which neighbouring query heads share; v may have another dim
    causal, scale: as ring_attention's
    kernel: attention of the whole sequence, (q, k, v) -> output, for some of the heads; it decides about masks and
            scale. None is F.scaled_dot_product_attention with `causal` and `scale`

    Returns (batch, heads, tokens, dim of v). Raises ValueError, with the numbers, where heads do not divide.
    """
    check_shapes(q, k, v, "contiguous")
    copies = check_heads(q.shape[1], k.shape[1], dist.get_world_size(group))
    if copies > 1:  # the gradient of a head that is sent more than once is the sum over those
        k, v = (x.repeat_interleave(copies, dim=1) for x in (k, v))
    q, k, v = (heads_for_tokens(x, group) for x in (q, k, v))
    if kernel is None:
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
    else:
        out = kernel(q, k, v)
    return tokens_for_heads(out, group)


class UlyssesCore(CutCore):
    """q_BHSE, k_BKSE, v_BKSE -> (B, H, S, E), S this rank's tokens:
    in the place of a Transformer block's `attention.core`.

    core: what is there now; it attends to the whole sequence, with some of the heads.
    Weights see a part of the sequence each: average their gradients over the group, as data parallelism does.
    """

    def __init__(self, core: nn.Module, group: Group = None) -> None:
        super().__init__(group)
        self.core = core

    def forward(self, q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor) -> Tensor:
        return ulysses_attention(q_BHSE, k_BKSE, v_BKSE, group=self.group, kernel=self.core)


# --- the two exchanges, each the other's backward ----------------------------------------------------------------


def heads_for_tokens(x: Tensor, group: Group = None) -> Tensor:
    """(B, H, S/p, E) -> (B, H/p, S, E): all tokens of this rank's heads, for its tokens of all heads."""
    # The all-to-all exchanges blocks of dim 0: heads go there, and ranks, which are parts of the sequence, come back.
    blocks = autograd.all_to_all(x.movedim(1, 0).contiguous(), group=group, using=dist)
    by_rank = blocks.unflatten(0, (dist.get_world_size(group), -1))  # (p, H/p, B, S/p, E)
    return by_rank.permute(2, 1, 0, 3, 4).flatten(2, 3)


def tokens_for_heads(x: Tensor, group: Group = None) -> Tensor:
    """(B, H/p, S, E) -> (B, H, S/p, E): the way back."""
    by_rank = x.unflatten(2, (dist.get_world_size(group), -1))  # (B, H/p, p, S/p, E)
    blocks = by_rank.permute(2, 1, 0, 3, 4).flatten(0, 1)
    return autograd.all_to_all(blocks.contiguous(), group=group, using=dist).movedim(0, 1)


def check_heads(heads: int, kv_heads: int, ranks: int) -> int:
    """How often each key-value head is sent, 1 where there are enough. Raises ValueError where heads do not divide."""
    if not heads % ranks and not (kv_heads % ranks and ranks % kv_heads):
        return max(1, ranks // kv_heads)
    fits = [n for n in range(1, heads + 1) if not heads % n and not (kv_heads % n and n % kv_heads)]
    raise ValueError(
        f"{heads} query heads and {kv_heads} key-value heads cannot be given out to {ranks} ranks: each gets an "
        f"equal number of both, or an equal number of ranks shares a key-value head. {', '.join(map(str, fits))} "
        "ranks would do; ring attention has no such limit"
    )
