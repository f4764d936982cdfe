"""Integers: a number becomes 8, 4 or 2 bits, and a block of numbers shares a scale.

A block's largest magnitude becomes the largest code, 2^(bits - 1) - 1, and 0 stays 0. Rounded to the nearest code a
number is off by half a step at most, but always to the same side: over many steps a small gradient may vanish. Rounded
up or down by chance, so that the expectation is the number itself, errors average out over ranks and steps, and each
one is larger: that is QSGD (Alistarh et al. 1610.02132) as its authors ran it, scaled by the largest number; qsgd.py
has it as they prove it, and ternary.py TernGrad.

Bytes of n numbers in blocks of b: ceil(n bits / 8) + 4 ceil(n / b). Small blocks follow the numbers more closely.
However long a block is, its numbers are looked at, divided and rounded in pieces that stay in the cache: whole vectors,
each operation of which goes through main memory and into fresh pages, take several times as long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dtcourse import device
from dtcourse.compression.compressor import REDUCE_SCATTER, Compressor, Payload
from dtcourse.compression.quantized.stochastic_rounding import (
    StochasticRounding,
    drawn_state,
    load_drawn_state,
)

BLOCK = 1 << 16
PIECE = 1 << 17  # numbers that stay in the cache: half a MiB of float32, beside their codes


class IntegerQuantizer(Compressor):
    """bits: 8, 4 or 2, packed; block: numbers that share a scale; stochastic: rounds by chance, without bias.

    seed: of the chance; each rank draws numbers of its own, so that errors average out over the ranks

    A block with a NaN or an infinity in it comes out as NaN, so that it is seen.
    """

    scheme = REDUCE_SCATTER

    def __init__(
        self, bits: int = 8, *, block: int = BLOCK, stochastic: bool = False, seed: int = 0
    ) -> None:
        if bits not in (8, 4, 2):
            raise ValueError(f"bits is 8, 4 or 2, so that codes fill whole bytes; got {bits!r}")
        if block < 1:
            raise ValueError(f"block is a number of numbers, 1 or more; got {block!r}")
        self.bits, self.block, self.stochastic = bits, block, stochastic
        self.most = 2 ** (bits - 1) - 1  # codes are -most to most
        self._chance = StochasticRounding(seed)
        self._back: IntegerQuantizer | None = None

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        return (-(-n // self.block), torch.float32), (-(-n * self.bits // 8), torch.uint8)

    def compress(self, x: Tensor) -> Payload:
        n = len(x)
        kernels = _kernels(x)
        if kernels is not None and not self.stochastic:
            scales, codes = kernels.quantize(x, self.block, self.most)
            return Payload((scales, pack(codes, self.bits)), n)
        scales = self._scales(x)
        divisors = torch.where(scales > 0, scales, 1.0)
        codes = torch.empty(n, dtype=torch.int8, device=x.device)
        room = torch.empty(min(n, _longest(x)), device=x.device)
        for numbers, blocks in pieces(x, self.block):
            divisor = divisors[blocks, None]
            part = x[numbers].view(len(divisor), -1)
            steps = torch.div(part, divisor, out=room[: part.numel()].view_as(part))
            codes[numbers] = self._round(steps.view(-1))
        return Payload((scales, pack(codes, self.bits)), n)

    def decompress(self, payload: Payload) -> Tensor:
        return self.decompress_into(payload, payload.wire[0].new_empty(payload.n))

    def decompress_into(self, payload: Payload, out: Tensor) -> Tensor:
        scales, packed = payload.wire
        codes = unpack(packed, self.bits, payload.n)
        kernels = _kernels(out)
        if kernels is not None and out.is_contiguous():
            kernels.dequantize(codes, scales, self.block, out)
            return out
        for numbers, blocks in pieces(out, self.block):
            scale = scales[blocks, None]
            out[numbers].copy_(codes[numbers]).view(len(scale), -1).mul_(scale)
        return out

    def contraction(self, n: int) -> float:
        # Worst: the largest number of a block is exact, and all others lie t steps from 0. To the nearest: t = 1/2,
        # which rounds to 0. By chance: the variance is t (1 - t), and t = M / (M + sqrt(M^2 + others)), M the largest
        # code.
        others, most = max(0, min(n, self.block) - 1), self.most
        if not self.stochastic:
            return most**2 / (most**2 + others / 4)
        return (3 - math.sqrt(1 + others / most**2)) / 2

    def feedback_advice(self) -> str:
        return f"take stochastic=False, or blocks of at most {8 * self.most**2} numbers for {self.bits} bits"

    def state_dict(self) -> dict[str, Any]:
        return (
            drawn_state(self._chance, None if self._back is None else self._back._chance)
            if self.stochastic
            else {}
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not self.stochastic:
            return super().load_state_dict(state)
        load_drawn_state(state, self._chance, self.second_stage()._chance)

    def second_stage(self) -> IntegerQuantizer:
        if not self.stochastic:
            return self
        if self._back is None:
            self._back = IntegerQuantizer(
                self.bits, block=self.block, stochastic=True, seed=self._chance.seed + 1
            )
        return self._back

    def _scales(self, x: Tensor) -> Tensor:
        largest = torch.zeros(-(-len(x) // self.block), device=x.device)
        for numbers, blocks in pieces(x, self.block):
            found = largest[blocks]
            part = x[numbers].view(len(found), -1)
            # Of a long block this is one piece of several.
            torch.maximum(found, torch.maximum(part.amax(1), -part.amin(1)), out=found)
        scales = largest / self.most
        return torch.where(scales.isfinite(), scales, torch.nan)

    def _round(self, steps: Tensor) -> Tensor:
        if not self.stochastic:
            return steps.round_()
        # x / (x / 127) may be a hair above 127: what rounds that up to 128 has made the largest number the smallest.
        return self._chance.round_(steps.clamp_(-self.most, self.most))


def pieces(x: Tensor, block: int) -> Iterator[tuple[slice, slice]]:
    """(numbers, blocks) of x, (n,): whole blocks that stay in the cache together, or a part of one that does not.

    All blocks of a piece are as long as each other; a last one that is shorter comes by itself. On a GPU pieces are as
    long as they can be.
    """
    n, longest = len(x), _longest(x)
    if block >= longest:
        for start in range(0, n, block):
            stop = min(start + block, n)
            for begin in range(start, stop, longest):
                number = start // block
                yield slice(begin, min(begin + longest, stop)), slice(number, number + 1)
        return
    whole, together = n // block, longest // block
    for first in range(0, whole, together):
        last = min(first + together, whole)
        yield slice(first * block, last * block), slice(first, last)
    if n % block:
        yield slice(whole * block, n), slice(whole, whole + 1)


def _kernels(x: Tensor) -> Any:
    """integers_triton, where x is on a GPU that has Triton; else None, and PyTorch's operations do it."""
    if not device.is_gpu(x.device) or x.dtype != torch.float32:
        return None
    from dtcourse.compression.quantized import integers_triton

    return integers_triton if integers_triton.triton is not None else None


def _longest(x: Tensor) -> int:
    return max(len(x), 1) if device.is_gpu(x.device) else PIECE


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes of so many bits, int8, one behind the other: (ceil(n bits / 8),), uint8."""
    if bits == 8:
        return codes.view(torch.uint8)
    each, mask = 8 // bits, 2**bits - 1
    if len(codes) % each:
        codes = torch.nn.functional.pad(codes, (0, -len(codes) % each))
    packed = torch.empty(len(codes) // each, dtype=torch.uint8, device=codes.device)
    columns = codes.view(torch.uint8).view(-1, each)
    for into, part in zip(packed.split(PIECE), columns.split(PIECE), strict=True):
        torch.bitwise_and(part[:, 0], mask, out=into)
        for place in range(1, each):
            into |= (part[:, place] & mask) << (place * bits)
    return packed


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """The n codes of `pack`, int8."""
    if bits == 8:
        return packed.view(torch.int8)
    each = 8 // bits
    codes = torch.empty(len(packed), each, dtype=torch.int8, device=packed.device)
    for into, part in zip(codes.split(PIECE), packed.split(PIECE), strict=True):
        for place in range(each):
            # Up until the code's first bit is the byte's, and down again: the shift down brings the sign along.
            top = (part << (8 - bits * (place + 1))).view(torch.int8)
            into[:, place] = top >> (8 - bits)
    return codes.flatten()[:n]
