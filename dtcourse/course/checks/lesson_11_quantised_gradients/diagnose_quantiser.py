"""What several ranks made of one vector, drawn anew each time: which quantiser is broken, and how."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, call_each, require_word
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_quantiser",
    lesson="11",
    title="Which quantiser is broken, and how?",
    takes=("diagnose_quantiser",),
    target="24 of 24 quantisers, of 8, 4 and 2 bits, drawn anew each time, and shuffled",
)

KINDS = ("healthy", "truncated", "same draws", "one scale", "wrapped")
BITS = (8, 4, 2)
Given = tuple[Tensor, Tensor, int, int]  # x, what came of it (ranks, steps, n), bits, block
HEALTHY = "How far from x may a number be that is rounded up or down by chance, and how near is the mean of many?"


def _scale(x: Tensor, block: int, codes: int) -> Tensor:
    """(n,): each number's step."""
    largest = torch.nn.functional.pad(x.abs(), (0, -len(x) % block)).view(-1, block).amax(1)
    return (largest / codes).repeat_interleave(block)[: len(x)]


def quantised(kind: str, x: Tensor, p: int, steps: int, bits: int, block: int) -> Tensor:
    """(p, steps, n): what a quantiser of that kind makes of x on each rank in each step."""
    most = 2 ** (bits - 1) - 1
    codes = most + 1 if kind == "wrapped" else most
    scale = _scale(x, len(x) if kind == "one scale" else block, codes)
    shape = (1 if kind == "same draws" else p, steps, len(x))
    if kind == "truncated":
        found = (x / scale).trunc().expand(shape)
    else:
        found = (x / scale + torch.rand(shape)).floor().clamp(-codes, codes)
    if kind == "wrapped":
        found = torch.where(found > most, found - 2**bits, found)
    return (found * scale).expand(p, steps, len(x)).clone()


def drawn(kind: str, bits: int) -> Given:
    """What a quantiser of that kind makes of a vector whose blocks have numbers of very different sizes."""
    p, steps = random.randint(2, 4), random.randint(25, 40)
    n, block = random.randint(200, 300), random.randint(40, 64)
    sizes = 10.0 ** -torch.arange(-(-n // block)).repeat_interleave(block)[:n]
    x = torch.randn(n) * sizes
    largest = x[:block].abs().argmax()
    x[largest] = x[largest].abs()  # of negative ones alone no code would wrap round
    return x, quantised(kind, x, p, steps, bits, block), bits, block


def _require(answer: Answer, kind: str, hint: str) -> None:
    tried = [(right, drawn(right, bits)) for right in (kind, "healthy") for bits in BITS]
    said = call_each(answer, [given for _, given in tried], shuffled=True)
    for (right, (x, y, bits, block)), got in zip(tried, said, strict=True):
        p, steps, _ = y.shape
        case = f"{plural(p, 'rank')}, {plural(steps, 'step')}, {len(x)} numbers, {bits} bits in blocks of {block}"
        require_word(case, got, right, KINDS, HEALTHY if right == "healthy" else hint)


@DIAGNOSE.check("rounding that is biased", points=2)
def check_truncated(answer: Answer) -> None:
    """Towards zero, always."""
    _require(answer, "truncated", "Is what comes out as long as x, on average over many steps?")


@DIAGNOSE.check("ranks that draw alike", points=2)
def check_draws(answer: Answer) -> None:
    """Then no error averages out over them."""
    _require(answer, "same draws", "Compare two ranks in the same step, and one rank in two steps.")


@DIAGNOSE.check("one scale for all blocks", points=2)
def check_scale(answer: Answer) -> None:
    """Steps that are too wide for most of them."""
    _require(answer, "one scale", "How wide is a step in a block of small numbers?")


@DIAGNOSE.check("a code that wraps round", points=2)
def check_wrapped(answer: Answer) -> None:
    """The largest number becomes the smallest."""
    _require(answer, "wrapped", "What comes out where x is largest, and with which sign?")
