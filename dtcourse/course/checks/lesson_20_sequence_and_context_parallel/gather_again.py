"""Attention over gathered keys and values, forward and backward, that keeps a rank's own tokens in between."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dtcourse.course.judging import (
    Answer,
    Each,
    Exercise,
    require,
    require_close,
    require_received,
)
from dtcourse.plural import plural

GATHER = Exercise(
    "gather_again",
    lesson="20",
    title="Gather again",
    takes=("gathered_forward", "gathered_backward"),
    target="output and gradients one process's to 1e-9 at 2, 3 and 4 ranks; keys and values sent p - 1 times "
    "forward, twice that backward; kept between: own tokens alone",
    forbidden=("dtcourse.sequence_parallel", "torch.distributed.tensor"),
)

HEADS, DIM, TOKENS = 6, 3, 4
# Ranks and key-value heads.
SIZES = ((2, 6), (3, 2), (4, 1))


def block(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """As the exercise describes it."""
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf)
    logsumexp = scores.logsumexp(-1, keepdim=True)
    return (scores - logsumexp).exp() @ v, logsumexp


def block_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, visible: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As the exercise describes it."""
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf)
    weights = (scores - logsumexp).exp()
    slope = weights * (grad @ v.mT - (grad * out).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
    return slope @ k, slope.mT @ q, weights.mT @ grad


def _kept_bytes(kept: Any) -> int | str:
    """Bytes of all tensors that were kept, storages once each; the name of a type that may not be among them."""
    storages: dict[int, int] = {}
    todo = [kept]
    while todo:
        one = todo.pop()
        if isinstance(one, Tensor):
            storages[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
        elif isinstance(one, dict):
            todo += one.values()
        elif isinstance(one, (list, tuple)):
            todo += one
        elif not isinstance(one, (int, float, bool, str, type(None), torch.Size)):
            return type(one).__name__
    return sum(storages.values())


def _with_numbers_of(kept: Any, other: Any) -> Any:
    """What was kept, with the whole numbers of another batch's: there are as many tokens, but it is not that one's."""
    if isinstance(kept, dict) and isinstance(other, dict):
        return {key: _with_numbers_of(one, other.get(key, one)) for key, one in kept.items()}
    if type(kept) is not type(other):
        return kept
    if isinstance(kept, (list, tuple)) and len(kept) == len(other):
        make = getattr(type(kept), "_make", type(kept))  # of a named tuple
        return make(map(_with_numbers_of, kept, other))
    if isinstance(kept, Tensor):
        return kept if kept.is_floating_point() or kept.is_complex() else other
    return other if isinstance(kept, int) else kept


def _on_a_rank(forward: Any, backward: Any, batches: list[list[Tensor]]) -> Any:
    """In a rank: output and gradients of the second of three batches, all of which have been forward by then; bytes
    sent in each pass of it, received in backward, and what was kept in between.

    So what an answer keeps elsewhere than in `kept` is another batch's, whether it has the first or the last.
    """
    from dtcourse.collectives import traffic

    passes = []
    for own in batches:
        with traffic.counting() as sent:
            out, kept = forward(*(x.clone() for x in own[:3]), block)
        result = out.clone() if isinstance(out, Tensor) else out
        passes.append((result, kept, sent.bytes_sent(), _kept_bytes(kept)))
    (result, kept, forth, held), (_, other, *_) = passes[1:]
    with traffic.counting() as back:
        grads = backward(batches[1][3].clone(), _with_numbers_of(kept, other), block_backward)
    return (result, *grads), forth, back.bytes_sent(), back.bytes_received(), held


def _runs(answer: Answer) -> Any:
    """(ranks, key-value heads, inputs of the whole sequence, run) of each size."""
    for ranks, kv_heads in SIZES:
        heads = (HEADS, kv_heads, kv_heads, HEADS)
        batches = [
            [torch.randn(n, ranks * TOKENS, DIM, dtype=torch.double) for n in heads]
            for _ in range(3)
        ]
        own = [
            [[x.chunk(ranks, 1)[rank] for x in tensors] for tensors in batches]
            for rank in range(ranks)
        ]
        run = answer.run(_on_a_rank, ranks, Each(own), backend="ring", record=True)
        yield ranks, kv_heads, batches[1], run


def _where(ranks: int, kv_heads: int) -> str:
    return f"With {plural(ranks, 'rank')}, {HEADS} query heads and {plural(kv_heads, 'key-value head')},"


def _alone(tensors: list[Tensor]) -> list[Tensor]:
    """Output and gradients of one process."""
    q, k, v = (x.clone().requires_grad_() for x in tensors[:3])
    keys, values = (x.repeat_interleave(HEADS // len(x), 0) for x in (k, v))
    out = F.scaled_dot_product_attention(q, keys, values, is_causal=True)
    out.backward(tensors[3])
    return [out.detach(), *(x.grad for x in (q, k, v) if x.grad is not None)]


@GATHER.check("the output is one process's", points=2)
def check_output(answer: Answer) -> None:
    """At 2, 3 and 4 ranks, with grouped heads."""
    for ranks, kv_heads, tensors, run in _runs(answer):
        right = _alone(tensors)[0].chunk(ranks, 1)
        for rank, (found, *_) in enumerate(run):
            require_close(
                found[0],
                right[rank],
                f"{_where(ranks, kv_heads)} the output of rank {rank}",
                1e-9,
                "Which query heads share a key-value head, and which of all keys does a query of this rank see?",
            )


@GATHER.check("the gradients are one process's", points=3, needs=("check_output",))
def check_gradients(answer: Answer) -> None:
    """Of queries, keys and values; while another batch is between its passes, too."""
    for ranks, kv_heads, tensors, run in _runs(answer):
        right = [x.chunk(ranks, 1) for x in _alone(tensors)[1:]]
        for rank, (found, *_) in enumerate(run):
            require(
                len(found) == 4,
                f"gathered_backward should return three gradients; got {len(found) - 1} things.",
            )
            for i, name in enumerate("qkv"):
                hint = (
                    "Is it the gradient of this rank's queries, in this rank's order, and of this batch, where "
                    "another one has been forward since?"
                )
                if name != "q":
                    hint = (
                        "Whose queries have seen these keys? And which query heads are summed into one "
                        "key-value head?"
                    )
                require_close(
                    found[i + 1],
                    right[i][rank],
                    f"{_where(ranks, kv_heads)} the gradient of {name} on rank {rank}",
                    1e-9,
                    hint,
                )


@GATHER.check("no more is sent than must be", points=2, needs=("check_gradients",))
def check_bytes(answer: Answer) -> None:
    """Counted in each pass."""
    for ranks, kv_heads, _, run in _runs(answer):
        one = (ranks - 1) * 2 * 8 * kv_heads * TOKENS * DIM
        for rank, (_, forward, backward, came, _) in enumerate(run):
            require(
                forward <= one,
                f"{_where(ranks, kv_heads)} rank {rank} sends {forward} bytes forward; its keys and values, for "
                f"{plural(ranks - 1, 'other rank')}, are {one}. Is a key-value head sent once, or once for each "
                "query head? Who needs queries?",
            )
            require(
                backward <= 2 * one,
                f"{_where(ranks, kv_heads)} rank {rank} sends {backward} bytes backward; {2 * one} are enough, for "
                "keys and values once more and for their gradients. Are gradients summed over the query heads "
                "before they travel, and does each rank get more than its own part of the sums?",
            )
            # Keys and values of all ranks before it, and what one of the ranks after it adds to its gradients.
            least = (rank + (rank < ranks - 1)) * one // (ranks - 1)
            where = f"{_where(ranks, kv_heads)} in backward rank {rank}"
            require_received(where, came, least)


@GATHER.check("what was gathered is not kept", points=2, needs=("check_gradients",))
def check_kept(answer: Answer) -> None:
    """Bytes of all tensors that forward hands to backward."""
    for ranks, kv_heads, _, run in _runs(answer):
        most = 8 * TOKENS * (2 * HEADS * DIM + 2 * kv_heads * DIM + HEADS)
        for rank, (*_, held) in enumerate(run):
            require(
                not isinstance(held, str),
                f"`kept` holds a {held}. Tensors and numbers, in tuples, lists and dicts, can be counted.",
            )
            require(
                held <= most,
                f"{_where(ranks, kv_heads)} rank {rank} keeps {held} bytes from forward to backward; this rank's "
                f"q, k, v, output and sums of exponentials are {most}. What can be gathered again, and what is a "
                "view of something larger?",
            )
