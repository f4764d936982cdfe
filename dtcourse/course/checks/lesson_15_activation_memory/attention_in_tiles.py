"""Memory-efficient attention, forward and backward."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require

ATTENTION = Exercise(
    "attention_in_tiles",
    lesson="15",
    title="Memory-efficient attention, forward and backward",
    takes=("tiled_attention",),
    target="output and gradients to 1e-9; kept: output and one number a query; peak at 768 keys under 1 MiB",
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
    tiled_attention: Any, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, causal: bool, block: int
) -> Any:
    from dtcourse.profiling.memory_tracker import MemoryTracker

    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    with MemoryTracker(inputs=[q, k, v, grad]) as tracker:
        out = tiled_attention(q, k, v, causal, block)
        out.backward(grad)
    given = sum(x.nbytes for x in (q, k, v, grad))
    gradients = [x.grad for x in (q, k, v)]
    return out.detach(), gradients, tracker.activation_bytes, tracker.peak.bytes - given


def _reference(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, causal: bool) -> list[Tensor]:
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    out = scores.softmax(-1) @ v
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]


def _qkv(leading: tuple[int, ...], L: int, S: int, E: int, size: float = 1.0) -> list[Tensor]:
    shapes = (*leading, L, E), (*leading, S, E), (*leading, S, E), (*leading, L, E)
    q, k, v, grad = (torch.randn(s, dtype=torch.double) for s in shapes)
    return [q * size, k * size, v, grad]


def _right(answer: Answer, tensors: list[Tensor], causal: bool, block: int) -> None:
    out, gradients, _, _ = answer.call(_attended, *tensors, causal, block)
    q, k, v, grad = tensors
    expected = _reference(q, k, v, grad, causal)
    which = f"q {tuple(q.shape)}, k {tuple(k.shape)}, {'causal' if causal else 'no mask'}, block {block}: "
    for name, mine, right in zip(
        ("output", "q.grad", "k.grad", "v.grad"), [out, *gradients], expected, strict=True
    ):
        require(
            mine is not None and mine.shape == right.shape,
            f"{which}{name} has not the shape {tuple(right.shape)}.",
        )
        require(
            mine.isfinite().all(),
            f"{which}{name} has infinities or NaN. Relative to what are the exponentials taken?",
        )
        error = (mine - right).abs().max().item()
        hint = {
            "output": "When a new maximum comes, what happens to the sum and to the weighted values so far? Is every key in one tile?",
            "q.grad": "What becomes of the gradient of the probabilities on its way through the softmax (delta), and where is the scale?",
            "k.grad": "Which queries see this block of keys, and where is the scale?",
            "v.grad": "Are these the probabilities of the forward pass: exp(score - log-sum-exp), masked?",
        }[name]
        require(error < 1e-9, f"{which}{name} is off by {error:.2g}. {hint}")


@ATTENTION.check(
    "output and gradients, with and without a causal mask", points=4, needs=("check_bytes",)
)
def check_attention(answer: Answer) -> None:
    """On (batch, length, dim) and (batch, heads, length, dim)."""
    for leading in ((2,), (2, 3)):
        for causal in (False, True):
            _right(answer, _qkv(leading, 32, 32, 6), causal, 8)


@ATTENTION.check(
    "any lengths: no multiple of the block, more keys than queries, fewer",
    points=2,
    needs=("check_attention", "check_bytes"),
)
def check_lengths(answer: Answer) -> None:
    """The last tile is shorter."""
    for L, S, causal in (
        (21, 21, True),
        (9, 30, False),
        (30, 9, True),
        (13, 27, True),
        (1, 5, False),
    ):
        _right(answer, _qkv((2,), L, S, 4), causal, 8)


@ATTENTION.check(
    "scores far beyond what exp can hold", points=2, needs=("check_attention", "check_bytes")
)
def check_large_scores(answer: Answer) -> None:
    """Scores of several thousand, where exp overflows from 710 on."""
    for causal in (False, True):
        _right(answer, _qkv((1,), 40, 40, 8, size=30.0), causal, 8)


@ATTENTION.check(
    "keeps the output and one number a query; its peak is far below the scores",
    points=4,
    needs=("check_attention",),
)
def check_bytes(answer: Answer) -> None:
    """What is alive when backward begins, and at the worst moment, beyond q, k, v and the gradient given."""
    tensors = _qkv((2,), 768, 768, 8)
    out, _, kept, peak = answer.call(_attended, *tensors, True, 64)
    allowed = out.nbytes + 2 * 768 * 8 + 2048
    scores = 2 * 768 * 768 * 8
    require(
        kept <= allowed,
        f"{kept:,} bytes are kept from forward to backward, beyond q, k and v; the output and one number a query are "
        f"{allowed:,} (all probabilities: {scores:,}). What does backward need that it cannot make again?",
    )
    require(
        peak < 1 << 20,
        f"At the worst moment {peak:,} bytes are alive beyond the inputs; 1 MiB is allowed, and the scores alone would be "
        f"{scores:,}. Is a tile gone before the next one is made, in backward too?",
    )
