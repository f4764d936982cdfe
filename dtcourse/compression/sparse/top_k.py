"""Few numbers: the largest, with where they are; or some that all ranks draw alike,
which need no places and can be added.

TopK keeps what contributes most and drops the same small numbers each time: without error feedback they never arrive
(Stich et al. 1809.07599). Ranks keep different places, so everyone's come to everyone. RandomK draws places from a seed
that all ranks share, new ones each time; scaled by n / k it is unbiased.

Bytes of n numbers, k kept: 8 k; 4 k.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dtcourse.compression.compressor import (
    ALL_GATHER,
    ALL_REDUCE,
    Compressor,
    Payload,
    is_finite,
    load_generator,
)
from dtcourse.compression.sparse.selection import largest


class TopK(Compressor):
    """The ceil(ratio n) numbers of largest magnitude, and their places. NaN counts as largest, so it is seen."""

    scheme = ALL_GATHER

    def __init__(self, ratio: float = 0.01, *, takes: torch.dtype = torch.float32) -> None:
        self.ratio, self.takes = checked_ratio(ratio), takes

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        k = kept(n, self.ratio)
        return (k, self.takes), (k, torch.int32)

    def compress(self, x: Tensor) -> Payload:
        places = largest(x, kept(len(x), self.ratio))
        return Payload((x[places], places.int()), len(x))

    def contraction(self, n: int) -> float:
        return kept(n, self.ratio) / max(1, n)

    def decompress(self, payload: Payload) -> Tensor:
        values, places = payload.wire
        return values.new_zeros(payload.n).index_copy_(0, places.long(), values)


class RandomK(Compressor):
    """ceil(ratio n) places that follow from the seed and from how many vectors came before: the same on all ranks.

    unbiased: what is kept is scaled by one over its chance, so that the expectation is x. Error feedback refuses that,
              for it would diverge: False. What is not finite, drawn or not, makes all that travels NaN.

    The vector is cut into k stretches as long as each other, but for one number, and one place is drawn in each: every
    number has its chance of k / n, or as near as that comes, and nothing takes as long as a permutation of all of them.
    Every rank has to compress as many vectors, of the same sizes in the same order.
    """

    scheme = ALL_REDUCE

    def __init__(
        self,
        ratio: float = 0.01,
        *,
        seed: int = 0,
        unbiased: bool = True,
        takes: torch.dtype = torch.float32,
    ) -> None:
        self.ratio, self.unbiased, self.takes = checked_ratio(ratio), unbiased, takes
        self._random = torch.Generator().manual_seed(seed)

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        return ((kept(n, self.ratio), self.takes),)

    def compress(self, x: Tensor) -> Payload:
        n, k = len(x), kept(len(x), self.ratio)
        bounds = torch.arange(k + 1) * n // max(k, 1)
        lengths = bounds.diff()
        chance = torch.rand(k, generator=self._random, dtype=torch.float64)
        places = (bounds[:-1] + (chance * lengths).long()).to(x.device)
        values = x[places]
        if self.unbiased:
            values *= lengths.to(x)
        if not is_finite(x):  # where it is not may not have been drawn
            values = torch.full_like(values, math.nan)
        return Payload((values,), n, places)

    def contraction(self, n: int) -> float:
        # A number is drawn with the chance 1 / length, length the numbers of its stretch, and scaled by length or not.
        longest = -(-n // max(1, kept(n, self.ratio)))
        return 2.0 - longest if self.unbiased else 1 / max(1, longest)

    def feedback_advice(self) -> str:
        return "take unbiased=False, which does not scale what is drawn"

    def state_dict(self) -> dict[str, Any]:
        return {"random": self._random.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_generator(self._random, state)

    def decompress(self, payload: Payload) -> Tensor:
        (values,) = payload.wire
        return values.new_zeros(payload.n).index_copy_(0, payload.known, values)


def kept(n: int, ratio: float) -> int:
    """How many of n numbers are sent: at least one, where there is one."""
    return math.ceil(ratio * n)


def checked_ratio(ratio: float) -> float:
    """The ratio, where it is one: else a ValueError."""
    if not 0 < ratio <= 1:
        raise ValueError(
            f"ratio is the part of the numbers that is sent, above 0 and at most 1; got {ratio!r}"
        )
    return ratio
