"""What several methods need: one bit a number, packed; and a vector looked at in rows that stay in the cache.

Eight bytes that are 0 or 1 are one 64-bit number, and a multiplication brings their lowest bits together: one operation
for eight numbers, where shifts would take eight.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# Byte i's bit, 8 i, is to come to 56 + i: the terms of the product that carry it there are 2^(56 - 7 i).
_GATHER = sum(1 << (56 - 7 * i) for i in range(8))
CHUNK = 1 << 16  # numbers that stay in the cache while they are looked at several times


def pack_bits(flags: Tensor) -> Tensor:
    """(n,) of bool, the first in the lowest bit: (ceil(n / 8),), uint8."""
    padded = torch.nn.functional.pad(flags, (0, -len(flags) % 8))
    return ((padded.view(torch.int64) * _GATHER) >> 56).to(torch.uint8)


def pack_signs(x: Tensor) -> Tensor:
    """The bits that say which numbers of x, (n,), are below zero: (ceil(n / 8),), uint8."""
    return torch.cat([pack_bits(part < 0) for part in x.split(CHUNK)])


def unpack_bits(
    packed: Tensor, n: int, unset: float | Tensor = 0.0, is_set: float | Tensor = 1.0
) -> Tensor:
    """(n,), float32: one value for the bits that are set, another for the others."""
    bits = (torch.arange(256)[:, None] >> torch.arange(8)) & 1
    values = torch.where(bits.to(packed.device) > 0, is_set, unset).to(torch.float32)
    return values.index_select(0, packed.int()).flatten()[:n]


def in_rows(x: Tensor, width: int) -> Iterator[tuple[int, Tensor]]:
    """(first row, rows of so many numbers), about CHUNK numbers at a time;
    a last row that is shorter comes by itself.
    """
    whole = len(x) // width
    some = max(1, CHUNK // width)
    for first in range(0, whole, some):
        last = min(first + some, whole)
        yield first, x[first * width : last * width].view(-1, width)
    if len(x) % width:
        yield whole, x[whole * width :].view(1, -1)
