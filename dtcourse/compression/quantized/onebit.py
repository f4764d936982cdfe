"""1-bit SGD (Seide et al., Interspeech 2014): one bit a number, and two values for each block.

A bit says whether a number is below zero. All that are become their mean, all that are not become theirs: no two
values are nearer to the block. In the paper a block is a column of a weight matrix, the weights of one output unit;
torch keeps those in a row, so block = the number of inputs is the paper's. What is left out has to be sent later: 1-bit
SGD is where error feedback comes from, and without it the paper's training diverges.

Bytes of n numbers in blocks of b: ceil(n / 8) + 8 ceil(n / b). ScaledSign (signs.py) has one value for all,
and its negative.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dtcourse.compression.bits import in_rows, pack_signs, unpack_bits
from dtcourse.compression.compressor import REDUCE_SCATTER, Compressor, Payload


class OneBitSGD(Compressor):
    """block: numbers that share their two values. What is not finite makes values of its block not finite."""

    scheme = REDUCE_SCATTER

    def __init__(self, block: int = 512) -> None:
        if block < 1:
            raise ValueError(f"block is a number of numbers, 1 or more; got {block!r}")
        self.block = block

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        return (2 * -(-n // self.block), torch.float32), (-(-n // 8), torch.uint8)

    def compress(self, x: Tensor) -> Payload:
        values = torch.empty(-(-len(x) // self.block), 2, device=x.device)
        for first, rows in in_rows(x, self.block):
            below = (rows < 0).sum(1)
            values[first : first + len(rows), 0] = rows.clamp(max=0).sum(1) / below.clamp(min=1)
            above = rows.shape[1] - below
            values[first : first + len(rows), 1] = rows.clamp(min=0).sum(1) / above.clamp(min=1)
        return Payload((values.flatten(), pack_signs(x)), len(x))

    def contraction(self, n: int) -> float:
        # Of the numbers of one sign the mean takes (sum |x_i|)^2 / count: at least their square by their count.
        return 1 / max(1, min(n, self.block))

    def decompress(self, payload: Payload) -> Tensor:
        values, packed = payload.wire[0].view(-1, 2), payload.wire[1]
        y = unpack_bits(packed, payload.n, unset=1.0, is_set=0.0)
        for first, rows in in_rows(y, self.block):
            low, high = values[first : first + len(rows), :, None].unbind(1)
            rows.mul_(high - low).add_(low)
        return y
