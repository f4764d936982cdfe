"""Which layers for which rank: by what each rank needs for a unit of work, and within its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from dtcourse.pipeline_parallel import balance
from dtcourse.plural import plural


@dataclass(frozen=True)
class Cuts:
    """What cuts of a model are judged by.

    costs:   of each layer, in any unit
    rank_of: by stage, whose it is
    layer_bytes, memory: what each layer takes, and each rank has; None: there is enough
    """

    costs: Sequence[float]
    rank_of: Sequence[int]
    layer_bytes: Sequence[float] | None = None
    memory: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if (self.layer_bytes is None) != (self.memory is None):
            raise ValueError("memory of each rank and layer_bytes of each layer go together")
        if self.layer_bytes is None or self.memory is None:
            return
        ranks = max(self.rank_of) + 1
        if len(self.layer_bytes) != len(self.costs) or len(self.memory) != ranks:
            raise ValueError(
                f"{plural(len(self.costs), 'layer')} on {plural(ranks, 'rank')} need as many layer_bytes and memories; "
                f"got {len(self.layer_bytes)} and {len(self.memory)}"
            )

    def busy(self, ranges: Sequence[range], seconds: Sequence[float]) -> list[float]:
        """Seconds that each rank works on a micro-batch. seconds: of each rank, for a unit of cost."""
        work = [0.0] * len(seconds)
        for rank, chosen in zip(self.rank_of, ranges, strict=True):
            work[rank] += self.cost(chosen) * seconds[rank]
        return work

    def cost(self, chosen: range) -> float:
        """Of some layers."""
        return sum(self.costs[i] for i in chosen)

    def fit(self, ranges: Sequence[range]) -> bool:
        """Whether each rank has memory for its layers."""
        if self.layer_bytes is None or self.memory is None:
            return True
        held = [0.0] * len(self.memory)
        for rank, chosen in zip(self.rank_of, ranges, strict=True):
            held[rank] += sum(self.layer_bytes[i] for i in chosen)
        return all(one <= most for one, most in zip(held, self.memory, strict=True))

    def require_fit(self, ranges: Sequence[range]) -> None:
        """Raises ValueError where a rank has too little memory for its layers."""
        if not self.fit(ranges):
            raise ValueError(
                f"stages of {[len(one) for one in ranges]} layers do not fit into the ranks' memory, {self.memory} "
                "bytes: take other cuts, or cut the model further"
            )

    def best(self, seconds: Sequence[float], now: Sequence[range] | None = None) -> list[range]:
        """Those whose busiest rank has least to do, and that fit. seconds: of each rank, for a unit of cost.

        With one stage on each rank these are the best there are. Where ranks have several, whose sums count, they are
        what no layer makes better that goes from one stage to another: from `now` on, and from evenly cut stages.
        Raises ValueError where none is found that fits.
        """
        speeds = [1 / seconds[rank] for rank in self.rank_of]
        if len(set(self.rank_of)) == len(self.rank_of):
            fits = None if self.memory is None else self._fits_alone
            return balance(self.costs, len(self.rank_of), speeds, fits=fits)
        begun = [list(now or ()), balance(self.costs, len(self.rank_of), speeds)]
        begun.append(balance(self.layer_bytes or self.costs, len(self.rank_of)))
        found = [self._improved(one, seconds) for one in begun if one and self.fit(one)]
        if not found:
            raise ValueError(
                f"no cut of {plural(len(self.costs), 'layer')} was found that fits into the ranks' memory, "
                f"{self.memory} bytes: pass ranges= that do, or cut the model further"
            )
        return min(found, key=lambda one: self._order(one, seconds))

    def _fits_alone(self, stage: int, chosen: range) -> bool:
        if self.layer_bytes is None or self.memory is None:
            return True
        return sum(self.layer_bytes[i] for i in chosen) <= self.memory[self.rank_of[stage]]

    def _order(self, ranges: Sequence[range], seconds: Sequence[float]) -> list[float]:
        return sorted(self.busy(ranges, seconds), reverse=True)

    def _improved(self, ranges: list[range], seconds: Sequence[float]) -> list[range]:
        while True:
            others = [one for one in _one_layer_moved(ranges) if self.fit(one)]
            best = min(others, key=lambda one: self._order(one, seconds), default=ranges)
            if self._order(best, seconds) >= self._order(ranges, seconds):
                return ranges
            ranges = best


def _one_layer_moved(ranges: Sequence[range]) -> Iterator[list[range]]:
    """All cuts in which one stage has a layer less and another one more; what is between them moves along by one."""
    sizes = [len(one) for one in ranges]
    for giver in range(len(sizes)):
        for taker in range(len(sizes)):
            if giver != taker and sizes[giver] > 1:
                changed = list(sizes)
                changed[giver] -= 1
                changed[taker] += 1
                ends = list(accumulate(changed))
                yield [range(end - size, end) for size, end in zip(changed, ends, strict=True)]
