"""Ring attention (context parallelism): every rank keeps its queries,
and the blocks of keys and values go round a ring.

1. Each of p ranks holds S/p tokens of the sequence. Everything but attention works on them alone.
2. In attention, a rank computes with the block of keys and values that it has, while that block goes to the right and
   the next one comes from the left. After p steps its queries have met all keys.
3. The outputs of two blocks are added as online softmax adds two tiles: each weighed by its sum of exponentials.
4. Backward: the blocks go round again, and each block's dK and dV follow it, growing at every rank, until they are
   home.

Sources: Ring Attention (Liu, Zaharia and Abbeel 2310.01889); online softmax (Milakov and Gimelshein 1805.02867); the
passes inside a block are those of FlashAttention-2, dtcourse/attention.py.

Per rank, n being the bytes of its own keys and values, B K S/p (E + V) numbers: (p - 1) n sent forward, 2 (p - 1) n
backward (keys and values, and their gradients, in float32 where the inputs are narrower). Two messages a step forward,
K and V. A transfer is hidden where the block's products take longer: 4 B H (S/p)^2 E FLOP against n bytes, so that it
only matters how long S/p is, and not how many ranks there are.
Memory: saved for backward q, k, v, the output and one number a query, all S/p long. Live besides: two blocks of keys
and values, the one that is computed with and the one that comes; in backward also three of their gradients.

Shape suffixes: B batch, H heads of queries, K of keys, G = H/K, L tokens of this rank, E elements of a head,
V of a value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from dtcourse import events
from dtcourse.attention import attention_backward, attention_forward
from dtcourse.collectives import p2p
from dtcourse.collectives.transfer import Transfer
from dtcourse.parameters.replicas import Group
from dtcourse.sequence_parallel.order import CutCore, chunks_of
from dtcourse.sequence_parallel.pieces import Piece, stretches, visible
from dtcourse.torch_private import all_gather_single


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    group: Group = None,
    order: str = "contiguous",
    documents: Tensor | None = None,
    block_q: int = 128,
    block_k: int = 128,
) -> Tensor:
    """softmax(scale q k^T) v over the whole sequence, for this rank's queries. All ranks of the group call it.

    q: (batch, heads, tokens, dim), the tokens that `order.shard` gives this rank, as many on every rank
    k, v: the same, or with fewer heads, each of which neighbouring query heads share; v may have another dim
    causal: a query sees the keys up to its own place in the whole sequence
    scale: of the scores; None is 1 / sqrt(dim)
    documents: (batch, tokens) integers, this rank's: tokens see those of their own document. Equal ids are neighbours
               in the sequence; -1 is padding, whose output is 0
    block_q, block_k: the tiles inside a block

    Returns (batch, heads, tokens, dim of v) in q's dtype. Raises ValueError, with the shapes, where they do not fit.
    """
    check_shapes(q, k, v, order, documents)
    if min(block_q, block_k) < 1:
        raise ValueError(f"a tile is at least 1 x 1; got block_q={block_q}, block_k={block_k}")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    everyones = None if documents is None else gather_documents(documents, group)
    plan = Plan(causal, scale, group, order, q.shape[-2], everyones, (block_q, block_k))
    return RingAttention.apply(q, k, v, plan)


class RingAttentionCore(CutCore):
    """q_BHSE, k_BKSE, v_BKSE -> (B, H, S, E), S this rank's tokens:
    in the place of a Transformer block's `attention.core`.

    Weights see a part of the sequence each: average their gradients over the group, as data parallelism does.
    """

    def __init__(
        self, group: Group = None, order: str = "contiguous", *, causal: bool = True
    ) -> None:
        super().__init__(group)
        self.order, self.causal = order, causal

    def forward(self, q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor) -> Tensor:
        return ring_attention(
            q_BHSE, k_BKSE, v_BKSE, causal=self.causal, group=self.group, order=self.order
        )


class RingAttention(torch.autograd.Function):
    """apply(q, k, v, plan): the two passes below as one differentiable operation."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
        k, v = k.contiguous(), v.contiguous()  # they are messages
        out, logsumexp = ring_forward(q, k, v, plan)
        ctx.save_for_backward(q, k, v, out, logsumexp)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, logsumexp = ctx.saved_tensors
        return *ring_backward(grad_out, q, k, v, out, logsumexp, ctx.plan), None


# --- the two passes -----------------------------------------------------------------------------------------------


@p2p.operation("ring_attention")
def ring_forward(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """The output (B, H, L, V), and the logarithm of each query's sum of exponentials (B, K, G, L),
    float32 or float64.
    """
    q_BKGLE = in_groups(q, k)
    out = q_BKGLE.new_zeros(*q_BKGLE.shape[:-1], v.shape[-1])
    logsumexp = q_BKGLE.new_full(q_BKGLE.shape[:-1], -torch.inf)
    block = k, v
    for step in range(plan.ranks):
        # Posted before this block is computed: the transfer has all that time.
        moving = Transfer(block, plan.group) if step + 1 < plan.ranks else None
        with plan.computing("attend", step):
            attend(q_BKGLE, *block, out, logsumexp, plan, step)
        if moving is not None:
            block = moving.wait()
    return out.flatten(1, 2).to(q.dtype), logsumexp


def attend(
    q_BKGLE: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, plan: Plan, step: int
) -> None:
    """Adds to the output what this rank's queries see of one block of keys."""
    for batch, rows, columns, causal in plan.pieces(step):
        queries = q_BKGLE[batch, ..., rows, :]
        keys, values = (x[batch, :, None, columns] for x in (k, v))
        more = attention_forward(queries, keys, values, causal, plan.scale, *plan.tile)
        add_block(out[batch, ..., rows, :], logsumexp[batch, ..., rows], *more)


def add_block(out: Tensor, logsumexp: Tensor, more_out: Tensor, more_logsumexp: Tensor) -> None:
    """Online softmax: adds to `out` the output of other keys. Each has the weight of its sum of exponentials."""
    together = torch.logaddexp(logsumexp, more_logsumexp)
    out.mul_((logsumexp - together).exp_()[..., None])
    out.add_(more_out * (more_logsumexp - together).exp_()[..., None])
    logsumexp.copy_(together)


@p2p.operation("ring_attention")
def ring_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, plan: Plan
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v. Those of this rank's keys and values are sums over all ranks."""
    mine = in_groups(grad_out, k), in_groups(q, k), in_groups(out, k), logsumexp
    grad_q = torch.zeros_like(mine[1])
    block, following = (k, v), None
    for step in range(plan.ranks):
        moving = Transfer(block, plan.group) if step + 1 < plan.ranks else None
        with plan.computing("attend backward", step):
            grads = attend_backward(*mine, *block, grad_q, plan, step)
        # The own block's gradients wait here for the rest of them. Another's go on to the rank that has it next.
        if step == 0:
            home = grads
        else:
            if following is not None:
                add_to(grads, following.wait())
            following = Transfer(grads, plan.group)
        if moving is not None:
            block = moving.wait()
    if following is not None:
        add_to(home, following.wait())
    return grad_q.flatten(1, 2).to(q.dtype), home[0].to(k.dtype), home[1].to(v.dtype)


def attend_backward(
    grad_out: Tensor,
    q_BKGLE: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    k: Tensor,
    v: Tensor,
    grad_q: Tensor,
    plan: Plan,
    step: int,
) -> tuple[Tensor, Tensor]:
    """This rank's part of the gradients of one block of keys and values; adds the block's part to grad_q."""
    grad_k, grad_v = (torch.zeros_like(x, dtype=grad_q.dtype) for x in (k, v))
    for batch, rows, columns, causal in plan.pieces(step):
        here = (batch, ..., rows, slice(None))
        keys, values = (in_each_group(x[batch, :, columns], q_BKGLE) for x in (k, v))
        sums = logsumexp[batch, ..., rows]
        part_q, part_k, part_v = attention_backward(
            grad_out[here], q_BKGLE[here], keys, values, out[here], sums, causal, plan.scale, *plan.tile
        )  # fmt: skip
        grad_q[here] += part_q
        # Over the queries that share a head of keys.
        grad_k[batch, :, columns] += part_k.sum(2)
        grad_v[batch, :, columns] += part_v.sum(2)
    return grad_k, grad_v


# --- who looks at whom --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What is the same in both passes.

    length: tokens of a rank;  documents: of all ranks, (p, B, length), or None;  tile: block_q, block_k
    """

    causal: bool
    scale: float
    group: Group
    order: str
    length: int
    documents: Tensor | None
    tile: tuple[int, int]

    @property
    def ranks(self) -> int:
        return dist.get_world_size(self.group)

    def owner(self, step: int) -> int:
        """The rank whose keys and values are here in this step."""
        return (dist.get_rank(self.group) - step) % self.ranks

    def pieces(self, step: int) -> list[Piece]:
        """What of this step's block this rank's queries see: without documents, the same for all of the batch."""
        me, owner = dist.get_rank(self.group), self.owner(step)
        mine, theirs = (chunks_of(r, self.ranks, self.order) for r in (me, owner))
        if self.documents is None:
            queries, keys = (stretches(chunks, self.length) for chunks in (mine, theirs))
            return visible(queries, keys, self.causal)
        found: list[Piece] = []
        for b in range(self.documents.shape[1]):
            queries = stretches(mine, self.length, self.documents[me, b])
            keys = stretches(theirs, self.length, self.documents[owner, b])
            found += visible(queries, keys, self.causal, slice(b, b + 1))
        return found

    def computing(self, name: str, step: int) -> Any:
        """An event of the timeline: which block was computed with, and when."""
        return events.span(name, "compute", detail={"step": step, "block": self.owner(step)})


def gather_documents(documents: Tensor, group: Group) -> Tensor:
    """All ranks' (B, L), as (p, B, L) in host memory: one integer a token, where K and V are thousands of numbers."""
    everyones = documents.new_empty((dist.get_world_size(group), *documents.shape))
    all_gather_single(everyones.flatten(0, 1), documents.contiguous(), group=group)
    return everyones.cpu()


def in_groups(x: Tensor, k: Tensor) -> Tensor:
    """(B, H, L, ...) -> (B, K, G, L, ...): the query heads that share a head of k together. In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(1, (k.shape[1], -1))


def in_each_group(x: Tensor, q_BKGLE: Tensor) -> Tensor:
    """(B, K, S, E) -> (B, K, G, S, E) without a copy, in q's dtype."""
    return x.to(q_BKGLE.dtype)[:, :, None].expand(-1, -1, q_BKGLE.shape[2], -1, -1)


def add_to(sums: tuple[Tensor, Tensor], more: tuple[Tensor, Tensor]) -> None:
    """Adds one pair of tensors to another, in place."""
    for mine, other in zip(sums, more, strict=True):
        mine += other


def check_shapes(
    q: Tensor, k: Tensor, v: Tensor, order: str, documents: Tensor | None = None
) -> None:
    """Raises ValueError where q, k, v of one rank do not fit together."""
    shapes = f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"q, k and v are (batch, heads, tokens, dim); {shapes}")
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise ValueError(
            f"q, k and v have one batch, k and v the same heads and tokens, q and k the same dim; {shapes}"
        )
    if q.shape[2] != k.shape[2]:
        raise ValueError(f"queries and keys are the same tokens, so as many; {shapes}")
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        raise ValueError(f"query heads share key-value heads equally; {shapes}")
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        raise ValueError(
            f"q, k and v have one floating-point dtype; got {q.dtype}, {k.dtype} and {v.dtype}"
        )
    parts = len(chunks_of(0, 1, order))
    if not q.shape[2] or q.shape[2] % parts:
        raise ValueError(
            f"in {order} order a rank holds {parts} equal chunks, at least one token each; {shapes}"
        )
    if documents is not None and documents.shape != (q.shape[0], q.shape[2]):
        raise ValueError(
            f"documents is (batch, tokens), {(q.shape[0], q.shape[2])} here; got {tuple(documents.shape)}"
        )
