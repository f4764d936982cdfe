"""SketchedSGD (Ivkin et al. 1903.04488): the largest numbers of the sum, found in the sum of the ranks' sketches.

TopK keeps what is largest on a rank, and what is largest in the sum may be large on none. The sum of the sketches is
the sketch of the sum, so every rank finds the same places in it, and a second all-reduce brings the exact numbers of
some more places than are wanted, of which the largest stay.

Bytes of n numbers, k of them sent: the sketch's, and 4 ceil(candidates k).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.compression.compressor import Residuals, Rounds, is_finite
from dtcourse.compression.sketches.count_sketch import CountSketch
from dtcourse.compression.sparse.selection import largest
from dtcourse.compression.sparse.top_k import checked_ratio, kept
from dtcourse.parameters.replicas import Group


class SketchedTopK(Rounds):
    """SketchedSGD: the ceil(ratio n) numbers of the mean that are largest,
    looked for in the sum of the ranks' sketches.

    ratio:      the part of the numbers that is sent
    sketch:     where they are looked for; its ratio decides how well they are found
    candidates: so many times as many are looked at exactly, in a second all-reduce. None: there is none, and the
                sketch's estimates are taken for the numbers

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

    def state_dict(self) -> dict[str, Any]:
        """What its sketch remembers."""
        return self.sketch.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what state_dict() was."""
        self.sketch.load_state_dict(state)

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
            if not is_finite(table):
                # Where it stood is not to be found; on all ranks alike, and what is kept stays as it was.
                nothing = torch.full_like(x, math.nan)
                if residuals is not None:
                    residuals.keep(nothing, x)
                return nothing
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
                residuals.keep(values, x.index_copy_(0, places, rest))
            return estimates.zero_().index_copy_(0, places, values)

        return finish
