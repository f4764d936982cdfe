"""Nothing is compressed: the degenerate case of each way, in which a mean has to be the mean.

What uses a compressor equals what does without one when it is given this; the only difference left is the order of
additions. Bytes of n numbers: 4 n, or 8 n of double.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dtcourse.compression.compressor import EVERYONE, LENGTHS, PARTS, SUM, Compressor, Payload


class Unchanged(Compressor):
    """A vector as it is, on any of the ways: SUM, PARTS, EVERYONE or LENGTHS."""

    def __init__(self, way: str = PARTS, *, takes: torch.dtype = torch.float32) -> None:
        if way not in (SUM, PARTS, EVERYONE, LENGTHS):
            raise ValueError(f"way is sum, parts, everyone or lengths; got {way!r}")
        self.way, self.takes = way, takes

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        return ((n, self.takes),)

    def compress(self, x: Tensor) -> Payload:
        return Payload((x.clone(),), len(x))

    def contraction(self, n: int) -> float:
        return 1.0

    def decompress(self, payload: Payload) -> Tensor:
        return payload.wire[0].clone()
