"""Nothing is compressed: the degenerate case of each scheme, in which a mean has to be the mean.

What uses a compressor equals what does without one when it is given this; the only difference left is the order of
additions. Bytes of n numbers: 4 n, or 8 n of double.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dtcourse.compression.compressor import (
    ALL_GATHER,
    ALL_GATHERV,
    ALL_REDUCE,
    REDUCE_SCATTER,
    Compressor,
    Payload,
)


class Identity(Compressor):
    """A vector as it is, in any of the schemes: ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER or ALL_GATHERV."""

    def __init__(self, scheme: str = REDUCE_SCATTER, *, takes: torch.dtype = torch.float32) -> None:
        schemes = (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_GATHERV)
        if scheme not in schemes:
            raise ValueError(f"scheme is one of {', '.join(schemes)}; got {scheme!r}")
        self.scheme, self.takes = scheme, takes

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        return ((n, self.takes),)

    def compress(self, x: Tensor) -> Payload:
        return Payload((x.clone(),), len(x))

    def contraction(self, n: int) -> float:
        return 1.0

    def decompress(self, payload: Payload) -> Tensor:
        return payload.wire[0].clone()
