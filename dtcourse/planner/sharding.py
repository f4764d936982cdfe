"""What data parallelism sends: gathers of sharded parameters, gradients averaged, and how much of it is seen.

With ZeRO's stage 3 a unit's parameters (a block's, an untied head's) are gathered while the unit before is computed,
and its gradients scattered while the next one's are: what takes longer is seen, and the first gather and last scatter.
What is hidden is not free: its kernels occupy `channels` multiprocessors meanwhile ("contention").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dtcourse.planner.hardware import Hardware
from dtcourse.planner.network import Group, experts_group, group
from dtcourse.planner.setting import Setting


@dataclass(frozen=True)
class Weights:
    """Numbers that a rank computes with: those that all data-parallel ranks have alike, and its experts'. linear: of
    the dense ones, those of blocks' linear layers, which alone travel in 8 bits (experts' all do).
    """

    dense: float
    experts: float = 0.0
    linear: float = 0.0

    def __add__(self, other: Weights) -> Weights:
        return Weights(
            self.dense + other.dense, self.experts + other.experts, self.linear + other.linear
        )

    def __mul__(self, times: float) -> Weights:
        return Weights(self.dense * times, self.experts * times, self.linear * times)

    @property
    def all(self) -> float:
        """Both."""
        return self.dense + self.experts


@dataclass(frozen=True)
class Exchange:
    """Seconds of one block's, or of any weights', collectives."""

    gather: float
    reduce: float


def exchange(weights: Weights, setting: Setting) -> Exchange:
    """Parameters gathered over the ranks that share them, and gradients averaged over all that have them."""
    gather = reduce = 0.0
    hardware, layout = setting.hardware, setting.layout
    for numbers, nbytes, shard, copies in _groups(weights, setting):
        if not numbers:
            continue
        if layout.stage:
            gather += shard.seconds(hardware, "all_gather", nbytes)
            reduce += shard.seconds(hardware, "reduce_scatter", setting.reduce * numbers)
            held = setting.reduce * numbers / shard.ranks
            reduce += copies.seconds(hardware, "all_reduce", held)
        else:
            both = Group(shard.ranks * copies.ranks, shard.stride)
            pieces = max(1, math.ceil(setting.reduce * numbers / max(layout.bucket, 1)))
            one = setting.reduce * numbers / pieces
            reduce += pieces * both.seconds(hardware, "all_reduce", one)
    return Exchange(gather, reduce)


def copies(weights: Weights, setting: Setting) -> Exchange:
    """What the device moves for one gather and for one reduction, beside the messages: parameters copied out of what
    has come, gradients into what is sent, and what comes back added to what this rank keeps.
    """
    s, layout = setting, setting.layout
    if not layout.copied:
        return Exchange(0.0, 0.0)
    gather = reduce = 0.0
    for numbers, nbytes, shard, others in _groups(weights, setting):
        ranks = shard.ranks if layout.stage else shard.ranks * others.ranks
        if ranks * others.ranks == 1 or not numbers:
            continue
        gather += 2 * nbytes  # fully_shard copies also what this rank shares with nobody
        back = s.reduce + 2 * s.accumulate if layout.stage else s.reduce + s.accumulate
        reduce += numbers * (s.accumulate + s.reduce) + back * numbers / (
            ranks if layout.stage else 1
        )
    rate = s.hardware.hbm * s.hardware.hbm_share
    return Exchange(gather / rate, reduce / rate)


def gathered(weights: Weights, setting: Setting) -> tuple[float, float]:
    """Bytes when they are gathered: of dense weights and of experts', which one rank alone need not gather."""
    dense, experts = weights.dense * setting.gather, weights.experts * setting.gather
    if setting.gathers_8bit:
        dense -= weights.linear * (setting.gather - 1)
        experts = weights.experts
    return dense, experts


def held(s: Setting, units: Sequence[tuple[Weights, int]], table: bool = False) -> float:
    """Bytes of parameters that are gathered, and of gradients until they are sent. table: the first unit is a tied one,
    which stays gathered from the embedding to the head and back.
    """
    layout = s.layout
    shared = layout.shared > 1
    found = 0.0
    if layout.stage == 0 and layout.copied:  # buckets beside the gradients
        alike = shared or layout.dp_replicate > 1
        apart = layout.expert_copies * layout.dp_replicate > 1
        return s.reduce * sum(n * (each.dense * alike + each.experts * apart) for each, n in units)
    # Experts that nobody shares are gathered by nobody, and their gradients are among the states.
    spread = layout.expert_copies > 1
    numbers = [each.dense * shared + each.experts * spread for each, _ in units]
    counts = [n for _, n in units]
    if layout.stage == 3:
        # Two neighbouring units at once; or all, from their first forward on, where they are not given back.
        bytes_ = [gathered(each, s) for each, _ in units]
        sizes = [dense * shared + experts * spread for dense, experts in bytes_]
        others = list(zip(sizes, counts, strict=True))[table:]
        after = [*(size for size, _ in others[1:]), 0.0]
        pairs = [max(x + y, 2 * x * (n > 1)) for (x, n), y in zip(others, after, strict=True)]
        whole = sum(x * n for x, n in zip(sizes, counts, strict=True))
        some = max(pairs, default=0.0) + sizes[0] * table
        found += some if layout.reshard_after_forward else whole
    if layout.stage >= 2:
        # Gradients of a unit until they are scattered; of all until the step's end, where they are averaged once.
        whole = sum(x * n for x, n in zip(numbers, counts, strict=True))
        found += whole * s.accumulate if layout.once else max(numbers) * s.reduce
    return found


def _groups(weights: Weights, setting: Setting) -> list[tuple[float, float, Group, Group]]:
    """(numbers, bytes when gathered, the ranks that share them, the copies of those): of dense weights and experts'."""
    layout, (dense, experts) = setting.layout, gathered(weights, setting)
    shard, copies = group(layout, "dp_shard", "cp"), group(layout, "dp_replicate")
    # Beside an expert's own ranks: those that have the same part of it.
    few = Group(layout.expert_copies, experts_group(layout).stride * layout.ep)
    return [(weights.dense, dense, shard, copies), (weights.experts, experts, few, copies)]


def hidden(messages: float, work: float, hardware: Hardware, overlap: bool) -> tuple[float, float]:
    """(seconds that are seen, seconds that the computation takes longer) of messages behind `work` seconds of it."""
    if not overlap:
        return messages, 0.0
    seen = max(0.0, messages - work)
    return seen, (messages - seen) * min(1.0, hardware.channels / hardware.sms)
