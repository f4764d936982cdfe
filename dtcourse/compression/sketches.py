"""Sketches: linear pictures of a vector, so that the sum of all ranks' sketches is the sketch of their sum.

    CountSketch        each number is added, with a sign, to one place in each of a few short rows
    SketchedTopK       the largest numbers of the sum, found in the sum of the sketches
    RandomProjection   each block of numbers in a few directions that all ranks draw alike

Everything goes through all_reduce, and takes the same bytes for any number of ranks' largest numbers; TopK, whose ranks keep
different places, has to gather them (sparse.py).

Count-sketch: Charikar, Chen, Farach-Colton 2002; SketchedSGD: Ivkin et al. 1903.04488. A number's place in a row is where its
block of numbers begins, drawn for each block and row, and how far in the block it stands. So two numbers of one block are
never added together, two of different blocks with the probability 1 / columns, with signs that are drawn by block: which is all
that the proofs ask, and what the machine does is to add one stretch of memory to another. A row's estimate of a number is off
by others' numbers with signs as likely as not, so it is unbiased, with a variance of |x|^2 / columns at most; so is the median
of an odd number of rows, which a few large numbers do not disturb.

Bytes of n numbers: 4 rows ceil(ratio n / rows); 4 candidates k more for SketchedTopK; 4 ceil(ratio b) a block of b numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.compression.compressor import SUM, Compressor, Payload, Residuals, Rounds
from dtcourse.compression.selection import largest
from dtcourse.compression.sparse import checked_ratio, kept
from dtcourse.parameters.replicas import Group

STRETCH = 4096  # numbers that are added at once, at least, where a row has as many


class CountSketch(Compressor):
    """An unbiased estimate of every number, from ratio n numbers. It is no contraction: leave error feedback out.

    ratio: the sketch's numbers a number of the vector;  rows: odd, so that there is a median
    seed:  of where blocks begin and of their signs: the same on all ranks, new ones for each vector

    Every rank has to compress as many vectors, of the same sizes in the same order.
    """

    way = SUM

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

    def _stretch(self, n: int) -> int:
        columns = self.columns(n)
        return min(columns, max(STRETCH, columns // 16))

    def _draw(self, n: int) -> list[list[tuple[int, int]]]:
        """For each stretch of the vector, where it begins in each row, and its sign there."""
        shape = (-(-n // self._stretch(n)) if n else 0, self.rows)
        begins = torch.randint(max(1, self.columns(n)), shape, generator=self._random).tolist()
        signs = torch.randint(2, shape, generator=self._random).mul_(2).sub_(1).tolist()
        return [list(zip(b, s, strict=True)) for b, s in zip(begins, signs, strict=True)]


class SketchedTopK(Rounds):
    """SketchedSGD: the ceil(ratio n) numbers of the mean that are largest, looked for in the sum of the ranks' sketches.

    ratio:      the part of the numbers that is sent
    sketch:     where they are looked for; its ratio decides how well they are found
    candidates: so many times as many are looked at exactly, in a second all-reduce. None: there is none, and the sketch's
                estimates are taken for the numbers

    What is not sent stays with each rank (error feedback), of what is sent nothing, or what the estimate was off by.
    """

    def __init__(
        self,
        ratio: float = 0.01,
        sketch: CountSketch | None = None,
        *,
        candidates: float | None = 4.0,
    ) -> None:
        if candidates is not None and not 1 <= candidates < math.inf:
            raise ValueError(
                f"candidates is how many times as many numbers are looked at, 1 or more, or None; got {candidates!r}"
            )
        self.ratio, self.candidates = checked_ratio(ratio), candidates
        self.sketch = CountSketch() if sketch is None else sketch
        self.takes = self.sketch.takes

    def nbytes(self, n: int) -> int:
        """Bytes of its two all-reduces."""
        return self.sketch.nbytes(n) + self.num_candidates(n) * self.takes.itemsize

    def num_candidates(self, n: int) -> int:
        """How many numbers of n the second all-reduce has."""
        if self.candidates is None:
            return 0
        return min(n, math.ceil(self.candidates * kept(n, self.ratio)))

    def begin(self, x: Tensor, group: Group, residuals: Residuals | None) -> Callable[[], Tensor]:
        p, n = dist.get_world_size(group), len(x)
        if residuals is not None and residuals.own is not None:
            x = x + residuals.own
        elif residuals is not None:
            x = x.clone()
        mine = x / p
        payload = self.sketch.compress(mine)

        def finish() -> Tensor:
            (table,) = payload.wire
            dist.all_reduce(table, group=group)
            if not table.isfinite().all():
                # Where it stood is not to be found; on all ranks alike, and what is kept stays as it was.
                if residuals is not None and residuals.own is None:
                    residuals.own = torch.zeros_like(x)
                return torch.full_like(x, math.nan)
            estimates, k = self.sketch.decompress(payload), kept(n, self.ratio)
            if self.candidates is None:
                places = largest(estimates, k)
                values = estimates[places]
            else:
                places = largest(estimates, self.num_candidates(n))
                values = mine[places]
                dist.all_reduce(values, group=group)
                best = largest(values, k)
                places, values = places[best], values[best]
            if residuals is not None:
                rest = x[places] - values if self.candidates is None else values.new_zeros(k)
                residuals.own = x.index_copy_(0, places, rest)
            return estimates.zero_().index_copy_(0, places, values)

        return finish


class RandomProjection(Compressor):
    """Blocks of a vector in ceil(ratio block) directions that follow from the seed: the same on all ranks, new each time.

    unbiased: scaled by block / directions, so that the expectation is x. With error feedback that diverges: False, the
    nearest vector in those directions. On average it leaves out 1 - ratio of |x|^2, whatever x is, never more than |x|^2.

    The directions are those of random rotations, in which no place is special: what RandomK does to a vector whose few
    large numbers it may miss, this does evenly. Every rank has to compress as many vectors, of the same sizes.
    """

    way = SUM

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

    def decompress(self, payload: Payload) -> Tensor:
        if not payload.n:
            return payload.wire[0].clone()
        directions = payload.known
        return (payload.wire[0].view(-1, directions.shape[1]) @ directions.t()).flatten()[
            : payload.n
        ]


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
