"""Integers: a number becomes 8, 4 or 2 bits, and a block of numbers shares a scale.

A block's largest magnitude becomes the largest code, 2^(bits - 1) - 1, and 0 stays 0. Rounded to the nearest code a number
is off by half a step at most, but always to the same side: over many steps a small gradient may vanish. Rounded up or down
by chance, so that the expectation is the number itself, errors average out over ranks and steps, and each one is larger: that
is QSGD (Alistarh et al. 1610.02132) as its authors ran it, scaled by the largest number; qsgd.py has it as they prove it, and
ternary.py TernGrad.

Bytes of n numbers in blocks of b: ceil(n bits / 8) + 4 ceil(n / b). Small blocks follow the numbers more closely; a block
that stays in the cache while it is looked at, divided and rounded makes it several times as fast.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dtcourse.compression.compressor import PARTS, Compressor, Payload
from dtcourse.compression.quantized.chance import Chance

BLOCK = 1 << 16


class IntegerQuantizer(Compressor):
    """bits: 8, 4 or 2, packed; block: numbers that share a scale; stochastic: rounds by chance, without bias.

    seed: of the chance; each rank draws numbers of its own, so that errors average out over the ranks

    A block with a NaN or an infinity in it comes out as NaN, so that it is seen.
    """

    way = PARTS

    def __init__(
        self, bits: int = 8, *, block: int = BLOCK, stochastic: bool = False, seed: int = 0
    ) -> None:
        if bits not in (8, 4, 2):
            raise ValueError(f"bits is 8, 4 or 2, so that codes fill whole bytes; got {bits!r}")
        if block < 1:
            raise ValueError(f"block is a number of numbers, 1 or more; got {block!r}")
        self.bits, self.block, self.stochastic = bits, block, stochastic
        self.most = 2 ** (bits - 1) - 1  # codes are -most to most
        self._chance = Chance(seed)
        self._back: IntegerQuantizer | None = None

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        return (-(-n // self.block), torch.float32), (-(-n * self.bits // 8), torch.uint8)

    def compress(self, x: Tensor) -> Payload:
        n = len(x)
        codes = torch.empty(n, dtype=torch.int8, device=x.device)
        scales = torch.empty(-(-n // self.block), device=x.device)
        for number, start in enumerate(range(0, n, self.block)):
            part = x[start : start + self.block]
            scales[number] = scale = self._scale(part)
            steps = part / torch.where(scale > 0, scale, 1.0)
            codes[start : start + self.block] = self._round(steps)
        return Payload((scales, pack(codes, self.bits)), n)

    def decompress(self, payload: Payload) -> Tensor:
        scales, packed = payload.wire
        y = unpack(packed, self.bits, payload.n).float()
        for number, start in enumerate(range(0, payload.n, self.block)):
            y[start : start + self.block] *= scales[number]
        return y

    def way_back(self) -> IntegerQuantizer:
        if not self.stochastic:
            return self
        if self._back is None:
            self._back = IntegerQuantizer(
                self.bits, block=self.block, stochastic=True, seed=self._chance.seed + 1
            )
        return self._back

    def _scale(self, part: Tensor) -> Tensor:
        low, high = part.aminmax()
        scale = torch.maximum(-low, high) / self.most
        return torch.where(scale.isfinite(), scale, torch.nan)

    def _round(self, steps: Tensor) -> Tensor:
        if not self.stochastic:
            return steps.round_()
        # x / (x / 127) may be a hair above 127: what rounds that up to 128 has made the largest number the smallest.
        return self._chance.round_(steps.clamp_(-self.most, self.most))


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes of so many bits, int8, one behind the other: (ceil(n bits / 8),), uint8."""
    if bits == 8:
        return codes.view(torch.uint8)
    each = 8 // bits
    padded = torch.nn.functional.pad(codes.view(torch.uint8), (0, -len(codes) % each))
    columns = padded.view(-1, each) & (2**bits - 1)
    packed = columns[:, 0].clone()
    for place in range(1, each):
        packed |= columns[:, place] << (place * bits)
    return packed


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """The n codes of `pack`, int8."""
    if bits == 8:
        return packed.view(torch.int8)
    shifts = torch.arange(0, 8, bits, device=packed.device, dtype=torch.uint8)
    low = (packed[:, None] >> shifts) & (2**bits - 1)
    # The sign: codes above half are those below zero.
    signed = low.to(torch.int8)
    return torch.where(signed >= 2 ** (bits - 1), signed - 2**bits, signed).flatten()[:n]
