"""Activations by formula."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import nn

from dtcourse.course.judging import Answer, Exercise, call_each, number, require
from dtcourse.profiling.memory import SavedTensors

ACTIVATIONS = Exercise(
    "kept_bytes",
    lesson="14",
    title="Activations by formula",
    takes=("kept_bytes",),
    target="equal to what autograd saves, to the byte, for 12 shapes",
    forbidden=(
        "torch.autograd.graph",
        "dtcourse.profiling",
        "dtcourse.simulator",
    ),
)


class GatedBlock(nn.Module):
    """The block of the exercise: grouped key-value heads, fused attention, a gated MLP, no biases."""

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.size, kv = width // heads, kv_heads * width // heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.output = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, kv, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (B, S, D) -> (B, S, D)"""
        a = self.norm_1(x)
        q, k, v = (
            layer(a).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        a = self.norm_2(x)
        return x + self.down(F.silu(self.gate(a)) * self.up(a))


def _shapes(count: int) -> list[tuple[int, ...]]:
    """(batch, sequence, width, heads, kv_heads, hidden), with fewer key-value heads than heads."""
    shapes: list[tuple[int, ...]] = []
    for _ in range(count):
        kv_heads, group = random.choice((2, 3)), random.choice((3, 4))  # no two hints coincide
        width = kv_heads * group * random.choice((8, 16))
        hidden = width + 8 * random.randrange(1, 20)
        batch, sequence = random.randrange(2, 5), random.randrange(9, 40)
        shapes.append((batch, sequence, width, kv_heads * group, kv_heads, hidden))
    return shapes


@ACTIVATIONS.check("the bytes of a gated block, as autograd saves them", points=4)
def check_kept_bytes(answer: Answer) -> None:
    """Measured here, on the real block, for every shape."""
    cases = _shapes(12)
    for case, got in zip(cases, map(number, call_each(answer, cases)), strict=True):
        batch, sequence, width, heads, kv_heads, hidden = case
        x = torch.randn(batch, sequence, width, requires_grad=True)
        block = GatedBlock(width, heads, kv_heads, hidden)
        with SavedTensors(block) as saved:
            block(x)
        require(
            type(got) is int,
            f"kept_bytes should return a whole number of bytes; it returned {got!r}. Divide with //.",
        )
        tokens = batch * sequence
        off = (got - saved.bytes) / (4 * tokens)  # numbers a token
        kv = kv_heads * width // heads
        hints = {
            -hidden: "A product's backward needs both of its factors, and silu needs its input, which is neither.",
            -2
            * hidden: "A product's backward needs both of its factors, and the layer after it the product itself.",
            2 * width: "Query, key and value read the same tensor. How often is it there?",
            width: "Is a tensor that one operation puts out and the next one saves there twice?",
            -width: "Does every operation with a weight keep its input? And each norm?",
            -heads: "The fused kernel keeps one number for each query, and every head has its own queries.",
            2
            * (
                width - kv
            ): "Key and value heads are shared: how wide are keys and values as they are kept?",
            -4: "Each norm keeps its mean and its scale, for every token.",
        }
        hint = hints.get(
            off, "Go through forward line by line: what does each operation's backward need?"
        )  # type: ignore[call-overload]
        require(
            got == saved.bytes,
            f"B={batch}, S={sequence}, D={width}, {heads} heads, {kv_heads} for keys and values, F={hidden}: "
            f"autograd keeps {saved.bytes:,} bytes, and you say {got:,}, which is {abs(off):g} numbers a token too "
            f"{'many' if off > 0 else 'few'}. {hint}",
        )
