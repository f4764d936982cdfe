"""Which layout for unequal ranks: by what each was measured to do, and by what its memory holds.

    work = Work(costs, states, activations, outputs)                  # of each layer
    seconds = [one.seconds for one in measured(one_sample, 1)]        # heterogeneous: of the whole model, on each rank
    plans = choose(work, seconds, memory, batch=256, micro_batches=8, bandwidth=12.5e9)
    plans[0].stages, plans[0].ranges, plans[0].shares                 # the fastest

predict() is for a cluster of one kind of device, from its data sheet. Here a rank is its measured seconds per sample
and its bytes. A layout has dp copies of a pipeline of pp stages, cut alike in each copy, on some or all of the ranks
(one that is slow enough is better left out). Copies get shares of the batch in proportion, stages get layers in
proportion, and none more than its rank has memory for.

    seconds = max over copies of (all stages once, and the slowest m - 1 times: work and message on 1 / m of its share)
              + 2 (dp - 1) / dp (bytes of gradients of the largest stage) / bandwidth

of 1F1B, whose stage s keeps the activations of min(m, pp - s) micro-batches (up to a fifth more than it takes, where
stages are uneven and an early one is the slowest). Left out: overlap, the optimizer's step,
latency. Source: AMP (Li et al. 2022, arXiv 2210.07297), with measured speeds in place of its cost model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dtcourse.heterogeneous import proportional_shares
from dtcourse.planner.unequal_work import Plan, Work, nothing_fits
from dtcourse.plural import plural

ALL_ORDERS = 4  # ranks of which each order is tried


def choose(
    work: Work,
    seconds: Sequence[float],
    memory: Sequence[float],
    batch: int,
    micro_batches: int,
    bandwidth: float = math.inf,
) -> list[Plan]:
    """All layouts that fit, the fastest first.

    seconds:   of each rank, for one sample through the whole model, forward and backward
    memory:    bytes of each rank
    batch:     samples of a step, of all copies
    micro_batches: of a pipeline; with one stage, how often gradients are accumulated
    bandwidth: bytes per second between two ranks

    Raises ValueError for figures that cannot be; and where nothing fits, with the rank that comes nearest.
    """
    size = len(seconds)
    if not size or len(memory) != size or not all(0 < one < math.inf for one in seconds):
        raise ValueError(
            f"each rank has seconds per sample above 0, and bytes of memory; got {list(seconds)} and {list(memory)}"
        )
    if micro_batches < 1 or batch < micro_batches or not bandwidth > 0:
        raise ValueError(
            "a batch has a sample or more for each micro-batch, and a network some bytes per second; got "
            f"{plural(batch, 'sample')}, {plural(micro_batches, 'micro-batch', 'micro-batches')}, {bandwidth!r}"
        )
    speeds = [sum(work.costs) / one for one in seconds]
    job = _Job(work, speeds, memory, batch, micro_batches, bandwidth)
    found: dict[tuple[tuple[int, ...], ...], Plan] = {}
    by_speed = sorted(range(size), key=lambda rank: (seconds[rank], -memory[rank], rank))
    for used in range(1, size + 1):
        for pp in (pp for pp in range(1, used + 1) if used % pp == 0):
            for stages in _laid_out(by_speed[:used], pp, memory):
                if len(work.costs) >= pp and stages not in found and (plan := job.plan(stages)):
                    found[stages] = plan
    if not found:
        raise ValueError(nothing_fits(work, memory, batch, micro_batches))
    return sorted(found.values(), key=lambda plan: plan.seconds)


def _laid_out(
    ranks: Sequence[int], pp: int, memory: Sequence[float]
) -> list[tuple[tuple[int, ...], ...]]:
    """Copies of pp ranks each. ranks: the fastest first.

    Of few ranks all orders are tried. Of many, within a copy the fastest or the one with most memory comes first (the
    first stages keep the most activations), or last.
    """
    dp = len(ranks) // pp
    if len(ranks) <= ALL_ORDERS:
        orders = itertools.permutations(ranks)
        return [tuple(order[copy * pp : (copy + 1) * pp] for copy in range(dp)) for order in orders]
    together = [list(ranks[copy * pp : (copy + 1) * pp]) for copy in range(dp)]
    dealt = [list(ranks[copy::dp]) for copy in range(dp)]
    ways = []
    for way in (together, dealt):
        by_memory = [sorted(copy, key=lambda rank: -memory[rank]) for copy in way]
        for one in (way, by_memory):
            ways += [one, [copy[::-1] for copy in one]]
    return [tuple(map(tuple, way)) for way in ways]


@dataclass(frozen=True)
class _Job:
    """What choose() was asked, and the plan for one way to lay the ranks out. speeds: cost per second, of each rank."""

    work: Work
    speeds: Sequence[float]
    memory: Sequence[float]
    batch: int
    m: int
    bandwidth: float

    def plan(self, stages: tuple[tuple[int, ...], ...]) -> Plan | None:
        """The best cut and shares that fit; None where none does."""
        pp, dp = len(stages[0]), len(stages)
        limits = [self.most(copy) for copy in stages]
        if self.batch < dp * self.m or sum(limits) < self.batch or min(limits) < self.m:
            return None
        # How much a copy gets depends on its slowest stage, and so on the cuts; these on who gets how much.
        pace = [min(self.speeds[rank] for rank in copy) for copy in stages]
        best: Plan | None = None
        for _ in range(3):
            shares = proportional_shares(self.batch, pace, limits, self.m)
            ranges = self.cut(stages, shares)
            if ranges is None:
                return best
            total = self.step(stages, shares, ranges)
            if best is None or total < best.seconds:
                held = {
                    copy[s]: self.held(s, pp, chosen, share)
                    for copy, share in zip(stages, shares, strict=True)
                    for s, chosen in enumerate(ranges)
                }
                best = Plan(stages, tuple(ranges), tuple(shares), total, held)
            pace = [1 / self.took(copy, ranges, 1.0) for copy in stages]
        return best

    def most(self, copy: Sequence[int]) -> int:
        """Samples of a step that a copy has memory for; of a pipeline at the most, since that depends on its cuts."""
        left = sum(self.memory[rank] for rank in copy) - sum(self.work.states)
        each = sum(self.work.activations)
        if left < 0 or each == 0 or left == math.inf:
            return self.batch if left >= 0 else 0
        return min(self.batch, self.m * math.floor(left / each))

    def cut(self, stages: tuple[tuple[int, ...], ...], shares: Sequence[int]) -> list[range] | None:
        """The layers of each stage, so that the slowest on any copy is as fast as it can be, and all fit."""
        pp = len(stages[0])

        def slowest(s: int, chosen: range) -> float:
            worst = 0.0
            for copy, share in zip(stages, shares, strict=True):
                if self.held(s, pp, chosen, share) > self.memory[copy[s]]:
                    return math.inf
                worst = max(worst, self.stage(copy[s], chosen, share / self.m))
            return worst

        return _cuts(len(self.work.costs), pp, slowest)

    def stage(self, rank: int, chosen: range, samples: float) -> float:
        """Seconds of a micro-batch in a stage: work, and what goes to the next one and comes back."""
        layers = len(self.work.costs)
        sent = 2 * self.work.outputs[chosen[-1]] if chosen[-1] < layers - 1 else 0.0
        cost = sum(self.work.costs[i] for i in chosen)
        return samples * (cost / self.speeds[rank] + sent / self.bandwidth)

    def held(self, s: int, pp: int, chosen: range, share: int) -> float:
        """Bytes of a rank: states, and activations of the micro-batches under way."""
        samples = math.ceil(share / self.m) * min(self.m, pp - s)
        return sum(self.work.states[i] + samples * self.work.activations[i] for i in chosen)

    def took(self, copy: Sequence[int], ranges: Sequence[range], share: float) -> float:
        """Seconds of a copy's pipeline for its share: all stages once, and the slowest m - 1 times."""
        each = [self.stage(copy[s], one, share / self.m) for s, one in enumerate(ranges)]
        return sum(each) + (self.m - 1) * max(each)

    def step(
        self, stages: tuple[tuple[int, ...], ...], shares: Sequence[int], ranges: Sequence[range]
    ) -> float:
        """Seconds of a step."""
        dp = len(stages)
        took = max(
            self.took(copy, ranges, share) for copy, share in zip(stages, shares, strict=True)
        )
        largest = max(sum(self.work.gradients[i] for i in chosen) for chosen in ranges)
        return took + 2 * (dp - 1) / dp * largest / self.bandwidth


def _cuts(layers: int, stages: int, slowest: Callable[[int, range], float]) -> list[range] | None:
    """Consecutive layers for each stage, the slowest stage as fast as it can be; None where each way is infinite."""
    best: list[tuple[float, list[range]]] = [(math.inf, [])] * (layers + 1)
    best[0] = 0.0, []
    for s in range(stages):
        new: list[tuple[float, list[range]]] = [(math.inf, [])] * (layers + 1)
        for end in range(s + 1, layers + 1):
            for start in range(s, end):
                before, chosen = best[start]
                if before < math.inf:
                    worst = max(before, slowest(s, range(start, end)))
                    if worst < new[end][0]:
                        new[end] = worst, [*chosen, range(start, end)]
        best = new
    return best[layers][1] if best[layers][0] < math.inf else None
