"""Which way of attending across ranks, and which order of the tokens: forward and backward are run, under emulation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, trials
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork

CHOOSE = Exercise(
    "choose_attention",
    lesson="20b",
    title="Choose a way and an order",
    takes=("choose_attention",),
    target="on 5 clusters of 4 ranks, a forward and backward in at most 1.01 times the best one's time; at most 2 of "
    "5 choices tried",
    launches=True,
)

RANKS, DIM = 4, 8
MOST = 2  # choices that an answer may try
CHOICES: list[trials.Choice] = [
    ("Ulysses", "contiguous"),
    ("ring", "contiguous"),
    ("ring", "zigzag"),
    ("gather", "contiguous"),
    ("gather", "zigzag"),
]
# Tokens, query heads, key-value heads; operations per second, seconds and bytes per second of a message.
Cluster = tuple[int, int, int, float, float, float]
LONG: tuple[Cluster, ...] = (
    (128, 4, 4, 1e9, 1e-6, 1e8),
    (96, 8, 8, 2e9, 2e-6, 2e8),
)
MANY_HEADS: tuple[Cluster, ...] = ((48, 8, 8, 2e10, 1e-6, 5e6),)
FEW_HEADS: tuple[Cluster, ...] = (
    (48, 16, 1, 2e10, 1e-6, 5e6),
    (32, 8, 1, 1e10, 2e-5, 5e7),
)


def step(choice: trials.Choice, tokens: int, heads: int, kv_heads: int) -> tuple[float]:
    """On each rank: the seconds of a forward and its backward under a causal mask."""
    from dtcourse import emulation

    way, order = choice
    shapes: list[Any] = [(1, n, tokens // RANKS, DIM) for n in (heads, kv_heads, kv_heads, heads)]
    q, k, v, grad = (torch.randn(s).requires_grad_(i < 3) for i, s in enumerate(shapes))
    start = trials.begin_together()
    _WAYS[way](q, k, v, order).backward(grad)
    return (emulation.now() - start,)


def _ring(q: Tensor, k: Tensor, v: Tensor, order: str) -> Any:
    from dtcourse.sequence_parallel import ring_attention

    tile = q.shape[2] // 2
    return ring_attention(q, k, v, causal=True, order=order, block_q=tile, block_k=tile)


def _ulysses(q: Tensor, k: Tensor, v: Tensor, order: str) -> Any:
    from dtcourse.sequence_parallel import ulysses_attention

    chunk = q.shape[2] // 2

    def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _seen(q, k, v, list(range(2 * RANKS)), chunk)

    return ulysses_attention(q, k, v, kernel=kernel)


def _gather(q: Tensor, k: Tensor, v: Tensor, order: str) -> Any:
    import torch.distributed as dist

    from dtcourse.collectives import autograd
    from dtcourse.sequence_parallel.order import positions

    ranks = [positions(q.shape[2] * RANKS, r, RANKS, order) for r in range(RANKS)]
    both = torch.stack([k, v]).movedim(3, 0).contiguous()
    everyones = autograd.all_gather(both, using=dist)[torch.cat(ranks).argsort()]
    chunk = q.shape[2] // 2
    mine = (ranks[dist.get_rank()][::chunk] // chunk).tolist()
    keys, values = everyones.movedim(0, 3)
    return _seen(q, keys, values, mine, chunk)


def _seen(q: Tensor, k: Tensor, v: Tensor, chunks: list[int], size: int) -> Tensor:
    """Causal attention of queries that are these chunks of the sequence; no chunk of keys behind one's own is read."""
    import torch.nn.functional as F

    found = []
    for part, number in zip(q.split(size, 2), chunks, strict=True):
        end = (number + 1) * size
        visible = torch.arange(end) <= torch.arange(end - size, end)[:, None]
        found.append(
            F.scaled_dot_product_attention(
                part, k[:, :, :end], v[:, :, :end], attn_mask=visible, enable_gqa=True
            )
        )
    return torch.cat(found, 2)


_WAYS = {"Ulysses": _ulysses, "ring": _ring, "gather": _gather}


def case(cluster: Cluster) -> trials.Case:
    """A cluster, as an answer gets it."""
    *job, flops, latency, bandwidth = cluster
    emulated = {
        "devices": EmulatedDevice(flops),
        "network": EmulatedNetwork(latency=latency, bandwidth=bandwidth),
    }
    return trials.Case(step, RANKS, CHOICES, job, job, MOST, emulated)


PRACTICE = case(LONG[0])


def _require(answer: Answer, clusters: tuple[Cluster, ...], hint: str) -> None:
    for cluster in clusters:
        tokens, heads, kv_heads, flops, latency, bandwidth = cluster
        where = (
            f"{tokens} tokens, {heads} query heads and {kv_heads} of keys and values, {flops:g} FLOP/s, messages of "
            f"{latency:g} s and {bandwidth:g} bytes/s"
        )
        why = "Ulysses has all tokens of its heads, in contiguous order; the ring and gathering take either order."
        trials.require_near_best_of(CHOICES, answer, case(cluster), where, why, hint)


@CHOOSE.check("where computing takes long", points=3)
def check_long(answer: Answer) -> None:
    """Balance, and what hides."""
    _require(
        answer,
        LONG,
        "Which rank computes longest in this order, and which messages travel while a rank computes?",
    )


@CHOOSE.check("where messages take long, with many key-value heads", points=2)
def check_many(answer: Answer) -> None:
    """Bytes of queries and output against those of keys and values."""
    _require(
        answer,
        MANY_HEADS,
        "How many bytes does each way send, forward and backward, with as many key-value heads as query heads?",
    )


@CHOOSE.check("where messages take long, with few key-value heads", points=3)
def check_few(answer: Answer) -> None:
    """Backward counts as well."""
    _require(
        answer,
        FEW_HEADS,
        "How large are keys and values beside queries and output here? And what does each way send in backward?",
    )
