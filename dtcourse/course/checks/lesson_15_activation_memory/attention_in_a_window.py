"""Attention in a sliding window, forward and backward in tiles."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require

WINDOW = Exercise(
    "attention_in_a_window",
    lesson="15",
    title="Attention in a sliding window, forward and backward",
    takes=("window_attention",),
    target="output and gradients to 1e-9; kept: output and 1 number per query; peak at 768 keys under 1 MiB; no tile "
    "that nobody sees",
    forbidden=(
        "torch.nn.functional.scaled_dot_product_attention",
        "torch.nn.functional.multi_head_attention_forward",
        "torch.nn.MultiheadAttention",
        "torch.nn.attention",
        "torch.ops",
        "dtcourse.memory",
        "dtcourse.attention",
    ),
)


def _attended(
    window_attention: Any, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, window: int, block: int
) -> Any:
    from dtcourse.profiling.memory_tracker import MemoryTracker

    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    with MemoryTracker(inputs=[q, k, v, grad]) as tracker:
        out = window_attention(q, k, v, window, block)
        out.backward(grad)
    given = sum(x.nbytes for x in (q, k, v, grad))
    gradients = [x.grad for x in (q, k, v)]
    return out.detach(), gradients, tracker.activation_bytes, tracker.peak.bytes - given


def _counted(
    window_attention: Any, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, window: int, block: int
) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    with FlopCounterMode(display=False) as counter:
        window_attention(q, k, v, window, block).backward(grad)
    return counter.get_total_flops()


def _reference(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, window: int) -> list[Tensor]:
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril().triu(1 - window)
    out = scores.masked_fill(~seen, -math.inf).softmax(-1) @ v
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]


def _qkv(leading: tuple[int, ...], L: int, E: int, size: float = 1.0) -> list[Tensor]:
    q, k, v, grad = (torch.randn(*leading, L, E, dtype=torch.double) for _ in range(4))
    return [q * size, k * size, v, grad]


# In the order in which mistakes show: the gradient of v needs the probabilities alone.
HINTS = {
    "output": "Which keys does the first query of a tile see, and which the last? And when a new maximum comes, what "
    "happens to the sum and to the weighted values so far?",
    "v.grad": "Are these the probabilities of the forward pass: exp(score - log-sum-exp), with the same mask?",
    "q.grad": "What becomes of the gradient of the probabilities on its "
    "way through the softmax (delta), and where is the scale?",
    "k.grad": "Which queries see this block of keys, and where is the scale?",
}


def _right(answer: Answer, tensors: list[Tensor], window: int, block: int) -> None:
    out, gradients, _, _ = answer.call(_attended, *tensors, window, block)
    q, k, v, grad = tensors
    names = ("output", "q.grad", "k.grad", "v.grad")
    got = dict(zip(names, [out, *gradients], strict=True))
    expected = dict(zip(names, _reference(q, k, v, grad, window), strict=True))
    which = f"q {tuple(tensors[0].shape)}, window {window}, block {block}: "
    for name, hint in HINTS.items():
        mine, right = got[name], expected[name]
        require(
            mine is not None and mine.shape == right.shape,
            f"{which}{name} has not the shape {tuple(right.shape)}.",
        )
        require(
            mine.isfinite().all(),
            f"{which}{name} has infinities or NaN. Relative to what are the exponentials taken, and what is the "
            "largest score of a query that sees no key of its first tile?",
        )
        error = (mine - right).abs().max().item()
        require(error < 1e-9, f"{which}{name} is off by {error:.2g}. {hint}")


@WINDOW.check("output and gradients", points=4, needs=("check_bytes",))
def check_attention(answer: Answer) -> None:
    """On (batch, length, dim) and (batch, heads, length, dim); windows of one key, of a tile, and of all keys."""
    for leading in ((2,), (2, 3)):
        for window in (8, 13, 1, 32):
            _right(answer, _qkv(leading, 32, 6), window, 8)


@WINDOW.check(
    "any length and window, no multiple of the block",
    points=2,
    needs=("check_attention", "check_bytes"),
)
def check_lengths(answer: Answer) -> None:
    """The last tile is shorter; the window may be longer than everything."""
    for length, window in ((21, 5), (30, 17), (13, 100), (1, 3), (27, 2)):
        _right(answer, _qkv((2,), length, 4), window, 8)


@WINDOW.check(
    "scores far beyond what exp can hold", points=1, needs=("check_attention", "check_bytes")
)
def check_large_scores(answer: Answer) -> None:
    """Scores of several thousand, where exp overflows from 710 on."""
    _right(answer, _qkv((1,), 40, 8, size=30.0), 12, 8)


@WINDOW.check(
    "keeps the output and one number per query; its peak is far below the scores",
    points=3,
    needs=("check_attention",),
)
def check_bytes(answer: Answer) -> None:
    """What is alive when backward begins, and at the worst moment, beyond q, k, v and the gradient given."""
    tensors = _qkv((2,), 768, 8)
    out, _, kept, peak = answer.call(_attended, *tensors, 100, 64)
    allowed = out.nbytes + 2 * 768 * 8 + 2048
    scores = 2 * 768 * 768 * 8
    require(
        kept <= allowed,
        f"{kept:,} bytes are kept from forward to backward, beyond q, k and v; the output and one number per query are "
        f"{allowed:,} (all probabilities: {scores:,}). What does backward need that it cannot make again?",
    )
    require(
        peak < 1 << 20,
        f"At the worst moment {peak:,} bytes are alive beyond the inputs; 1 MiB is allowed, and the scores alone "
        f"would be {scores:,}. Is a tile gone before the next one is made, in backward too?",
    )


@WINDOW.check(
    "computes only tiles in which some query sees some key",
    points=4,
    needs=("check_attention", "check_bytes"),
)
def check_tiles(answer: Answer) -> None:
    """Two products forward and five backward, of 2 E operations per score of a tile."""
    length, E, window, block = 256, 8, 40, 16
    done = answer.call(_counted, *_qkv((1,), length, E), window, block)
    tiles = sum(
        j * block <= (i + 1) * block - 1 and (j + 1) * block - 1 >= i * block - window + 1
        for i in range(length // block)
        for j in range(length // block)
    )
    causal = (length // block) * (length // block + 1) // 2
    allowed = 14 * E * block * block * tiles
    require(
        done <= 1.02 * allowed,
        f"{length} queries, window {window}, block {block}: {done:,} operations; {allowed:,} are enough for the "
        f"{tiles} tiles in which somebody sees something (of {causal} on and below the diagonal). Which keys are "
        "too old for all queries of a block?",
    )
