"""Random projection: each block of numbers in a few directions that all ranks draw alike, so that what travels adds.

It needs no places, as RandomK, and misses no large number by bad luck: each direction has a part of every number.

Bytes of n numbers in blocks of b: 4 ceil(ratio b) a block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dtcourse.compression.compressor import ALL_REDUCE, Compressor, Payload, load_generator
from dtcourse.compression.sparse.top_k import checked_ratio, kept


class RandomProjection(Compressor):
    """Blocks of a vector in ceil(ratio block) directions that follow from the seed: the same on all ranks,
    new each time.

    unbiased: scaled by block / directions, so that the expectation is x. Error feedback refuses that, for it would
              diverge: False, the nearest vector in those directions. On average it leaves out 1 - ratio of |x|^2,
              whatever x is, never more than |x|^2.

    The directions are those of random rotations, in which no place is special: what RandomK does to a vector whose few
    large numbers it may miss, this does evenly. Every rank has to compress as many vectors, of the same sizes.
    """

    scheme = ALL_REDUCE

    def __init__(
        self,
        ratio: float = 0.01,
        *,
        block: int = 1024,
        seed: int = 0,
        unbiased: bool = True,
        takes: torch.dtype = torch.float32,
    ) -> None:
        if not isinstance(block, int) or block < 1:
            raise ValueError(f"block is a number of numbers, 1 or more; got {block!r}")
        self.ratio, self.block, self.unbiased = checked_ratio(ratio), block, unbiased
        self.takes = takes
        self._random = torch.Generator().manual_seed(seed)

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        block = min(n, self.block)
        return (((-(-n // block) if n else 0) * kept(block, self.ratio), self.takes),)

    def compress(self, x: Tensor) -> Payload:
        n, block = len(x), min(len(x), self.block)
        if not n:
            return Payload((x.clone(),), 0)
        k = kept(block, self.ratio)
        drawn = torch.randn(block, k, generator=self._random, dtype=torch.float64)
        directions = torch.linalg.qr(drawn).Q.to(x)
        whole = n // block * block
        y = x.new_empty(-(-n // block), k)
        torch.mm(x[:whole].view(-1, block), directions, out=y[: n // block])
        if n > whole:
            torch.mv(directions[: n - whole].t(), x[whole:], out=y[-1])
        if self.unbiased:
            y *= block / k
        return Payload((y.flatten(),), n, directions)

    def contraction(self, n: int) -> float:
        # Random directions hold k / block of any vector's square on average; scaled, its square is block / k of |x|^2.
        block = max(1, min(n, self.block))
        share = max(1, kept(block, self.ratio)) / block
        return 2 - 1 / share if self.unbiased else share

    def feedback_advice(self) -> str:
        return "take unbiased=False, which does not scale what is in the directions"

    def state_dict(self) -> dict[str, Any]:
        return {"random": self._random.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_generator(self._random, state)

    def decompress(self, payload: Payload) -> Tensor:
        if not payload.n:
            return payload.wire[0].clone()
        directions = payload.known
        return (payload.wire[0].view(-1, directions.shape[1]) @ directions.t()).flatten()[
            : payload.n
        ]
