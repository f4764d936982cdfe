"""Shorter floats: half the bytes with float16 or bfloat16, a quarter with 8-bit floats and a scale.

float16 keeps 11 bits of precision and nothing above 65,504; bfloat16 keeps 8 bits and float32's range. Both can be
added on the way, by any all-reduce. Eight bits cannot: float8_e4m3fn has no number above 448, so a vector is scaled to
its largest, and two vectors with two scales have no sum in it. Source: Micikevicius et al. 2209.05433 (8-bit floats).

Bytes of n numbers: 2 n; n + 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dtcourse.compression.compressor import ALL_REDUCE, REDUCE_SCATTER, Compressor, Payload


class HalfPrecision(Compressor):
    """float16 or bfloat16, as PyTorch's fp16_compress_hook and bf16_compress_hook."""

    scheme = ALL_REDUCE

    def __init__(self, dtype: torch.dtype = torch.float16) -> None:
        if dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"half precision is torch.float16 or torch.bfloat16; got {dtype}")
        self.dtype = dtype

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        return ((n, self.dtype),)

    def compress(self, x: Tensor) -> Payload:
        return Payload((x.to(self.dtype),), len(x))

    def compress_share(self, x: Tensor, num_shares: int) -> Payload:
        # Divided in float32 and cast in one go: the quotients get no memory of their own.
        return Payload(
            (torch.div(x, num_shares, out=x.new_empty(len(x), dtype=self.dtype)),), len(x)
        )

    def contraction(self, n: int) -> float:
        # Half of the last bit, of what is in the range of its exponents.
        return 1 - (torch.finfo(self.dtype).eps / 2) ** 2

    def decompress(self, payload: Payload) -> Tensor:
        return payload.wire[0].float()


class Float8(Compressor):
    """An 8-bit float a number, and the scale of them all. torch.float8_e4m3fn is precise, torch.float8_e5m2 wide."""

    scheme = REDUCE_SCATTER

    def __init__(self, dtype: torch.dtype = torch.float8_e4m3fn) -> None:
        if dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
            raise ValueError(
                f"8-bit floats are torch.float8_e4m3fn or torch.float8_e5m2; got {dtype}"
            )
        self.dtype = dtype

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        return (1, torch.float32), (n, torch.uint8)

    def compress(self, x: Tensor) -> Payload:
        largest = x.abs().amax(0, keepdim=True) if len(x) else x.new_zeros(1)
        scale = largest / torch.finfo(self.dtype).max
        codes = (x / torch.where(scale > 0, scale, 1.0)).to(self.dtype)
        return Payload((scale, codes.view(torch.uint8)), len(x))

    def contraction(self, n: int) -> float:
        # Worst: the largest number is exact, all others are half of the smallest code, which rounds to 0.
        info = torch.finfo(self.dtype)
        most, relative = info.max / info.smallest_normal / info.eps, (info.eps / 2) ** 2
        return (1 - relative) * most**2 / (most**2 + max(0, n - 1) / 4)

    def decompress(self, payload: Payload) -> Tensor:
        scale, codes = payload.wire
        return codes.view(self.dtype).float() * scale
