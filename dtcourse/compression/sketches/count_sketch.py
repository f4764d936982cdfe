"""Count-sketch: each number is added, with a sign, to one place in each of a few short rows.

Source: Charikar, Chen, Farach-Colton 2002. A number's place in a row is where its block of numbers begins, drawn for
each block and row, and how far in the block it stands. So two numbers of one block are never added together, two of
different blocks with the probability 1 / columns, with signs that are drawn by block: which is all that the proofs ask,
and what the machine does is to add one stretch of memory to another. A row's estimate of a number is off by others'
numbers with signs as likely as not, so it is unbiased, with a variance of |x|^2 / columns at most; so is the median of
an odd number of rows, which a few large numbers do not disturb.

Bytes of n numbers: 4 rows ceil(ratio n / rows).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dtcourse.compression.compressor import ALL_REDUCE, Compressor, Payload, load_generator
from dtcourse.compression.sparse.top_k import checked_ratio

STRETCH = 4096  # numbers that are added at once, at least, where a row has as many


class CountSketch(Compressor):
    """An unbiased estimate of every number, from ratio n numbers. It is no contraction: error feedback refuses it.

    ratio: the sketch's numbers a number of the vector;  rows: odd, so that there is a median
    seed:  of where blocks begin and of their signs: the same on all ranks, new ones for each vector

    Every rank has to compress as many vectors, of the same sizes in the same order.
    """

    scheme = ALL_REDUCE

    def __init__(
        self,
        ratio: float = 0.05,
        *,
        rows: int = 5,
        seed: int = 0,
        takes: torch.dtype = torch.float32,
    ) -> None:
        if not isinstance(rows, int) or rows < 1 or rows % 2 == 0:
            raise ValueError(f"rows is an odd number, so that there is a median; got {rows!r}")
        self.ratio, self.rows, self.takes = checked_ratio(ratio), rows, takes
        self._random = torch.Generator().manual_seed(seed)

    def columns(self, n: int) -> int:
        """The numbers of a row."""
        return math.ceil(self.ratio * n / self.rows)

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        return ((self.rows * self.columns(n), self.takes),)

    def compress(self, x: Tensor) -> Payload:
        places = self._draw(len(x))
        columns, stretch = self.columns(len(x)), self._stretch(len(x))
        # Longer by a stretch than a row is: what goes over the end belongs to the beginning.
        table = x.new_zeros(self.rows, columns + stretch)
        for part, beginnings in _stretches(x, stretch, places):
            for row, (begin, sign) in zip(table, beginnings, strict=True):
                row[begin : begin + len(part)].add_(part, alpha=sign)
        table[:, :stretch] += table[:, columns:]
        # Of one column flatten() would make a view with gaps, in whose memory gloo adds the gaps up.
        return Payload((table[:, :columns].contiguous().view(-1),), len(x), places)

    def decompress(self, payload: Payload) -> Tensor:
        columns, stretch = self.columns(payload.n), self._stretch(payload.n)
        table = payload.wire[0].view(self.rows, columns)
        table = torch.cat([table, table[:, :stretch]], dim=1)
        y = table.new_empty(payload.n)
        for part, beginnings in _stretches(y, stretch, payload.known):
            found = [
                row[begin : begin + len(part)]
                for row, (begin, _) in zip(table, beginnings, strict=True)
            ]
            signs = (sign for _, sign in beginnings)
            part.copy_(median([f if s > 0 else -f for f, s in zip(found, signs, strict=True)]))
        return y

    def contraction(self, n: int) -> float:
        # A number falls on so many others of a row, each with the chance 1 / columns; a median of rows is no worse.
        return 1 - (n - self._stretch(n)) / self.columns(n) if n else 1.0

    def state_dict(self) -> dict[str, Any]:
        return {"random": self._random.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_generator(self._random, state)

    def _stretch(self, n: int) -> int:
        columns = self.columns(n)
        return min(columns, max(STRETCH, columns // 16))

    def _draw(self, n: int) -> list[list[tuple[int, int]]]:
        """For each stretch of the vector, where it begins in each row, and its sign there."""
        shape = (-(-n // self._stretch(n)) if n else 0, self.rows)
        begins = torch.randint(max(1, self.columns(n)), shape, generator=self._random).tolist()
        signs = torch.randint(2, shape, generator=self._random).mul_(2).sub_(1).tolist()
        return [list(zip(b, s, strict=True)) for b, s in zip(begins, signs, strict=True)]


def median(found: list[Tensor]) -> Tensor:
    """Number by number, the median of an odd number of tensors; NaN where one of them has it.

    torch.median would sort each few numbers for themselves.
    """
    low, high = torch.minimum, torch.maximum
    if len(found) == 1:
        return found[0]
    if len(found) == 3:
        a, b, c = found
        return high(low(a, b), low(high(a, b), c))
    if len(found) == 5:
        # Of four, neither the smallest nor the largest is the median of five.
        a, b, c, d, e = found
        return median([high(low(a, b), low(c, d)), low(high(a, b), high(c, d)), e])
    found = list(found)
    for turn in range(len(found)):  # neighbours change places until all are in order
        for i in range(turn % 2, len(found) - 1, 2):
            a, b = found[i], found[i + 1]
            found[i], found[i + 1] = low(a, b), high(a, b)
    return found[len(found) // 2]


def _stretches(
    x: Tensor, stretch: int, places: list[list[tuple[int, int]]]
) -> Iterator[tuple[Tensor, list[tuple[int, int]]]]:
    """Views of x, so long each, and what belongs to each."""
    return zip(x.split(stretch) if len(x) else (), places, strict=True)
