"""Shares of a batch in proportion to speed, within what each rank's memory holds, in whole samples.

In lock-step a step takes as long as the slowest rank's share. With shares in proportion to the ranks' speeds all end at
the same time, after total work / total speed: the ideal time, which no other shares beat. Samples are whole, so each
rank gets its proportion rounded down, and what is left goes, one sample after another, to the rank that ends first with
one more. No whole shares within the same bounds are quicker. Without bounds a step is at most one sample of the slowest
rank longer than the ideal, and mostly much less, since faster ranks take what is left.

Source of the balance: Chen et al., "Semi-dynamic load balancing" (SoCC 2020); of whole shares: Jefferson's method with
speeds as votes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

from dtcourse.plural import plural


def proportional_shares(
    total: int, speeds: Sequence[float], limits: Sequence[int] | None = None, least: int = 0
) -> list[int]:
    """Each rank's samples of a batch of `total`: their sum is exactly that.

    speeds: of each rank, samples per second, or in any other unit that is the same for all
    limits: the most samples that each rank's memory holds (`samples_that_fit`); default: none
    least:  samples that each rank gets at least. A rank without samples is not measured, so nobody would see that it
            has become faster: 1 keeps it in sight

    What is above a rank's limit, or missing to `least`, is divided among the others in proportion to their speeds. Of
    ranks that would end at the same time the faster one comes first, then the lower one.

    Raises ValueError for a batch, a speed or a limit that cannot be, for a rank whose memory does not hold one sample
    (or `least` of them), and where all memory together does not hold the batch.
    """
    limits = [total] * len(speeds) if limits is None else list(limits)
    _check(total, speeds, limits, least)
    exactly = [Fraction(speed) for speed in speeds]
    shares = [math.floor(quota) for quota in _within(total, exactly, limits, least)]

    def with_one_more(rank: int) -> tuple[Fraction, Fraction, int]:
        return (shares[rank] + 1) / exactly[rank], -exactly[rank], rank

    ends = [with_one_more(rank) for rank, share in enumerate(shares) if share < limits[rank]]
    heapq.heapify(ends)
    for _ in range(total - sum(shares)):
        rank = heapq.heappop(ends)[-1]
        shares[rank] += 1
        if shares[rank] < limits[rank]:
            heapq.heappush(ends, with_one_more(rank))
    return shares


def samples_that_fit(
    rank: int, memory_bytes: float, fixed_bytes: float, sample_bytes: float
) -> int:
    """How many samples a rank's memory holds: an entry of `limits` (limits_of_all_ranks gathers them).

    rank:         whose it is, for the message
    fixed_bytes:  what does not depend on the batch: parameters, gradients, optimizer states
    sample_bytes: activations of one sample

    Raises ValueError where it does not hold a single one, and for a memory that is not finite.
    """
    if not sample_bytes > 0:
        raise ValueError(f"a sample takes more than 0 bytes; got {sample_bytes!r}")
    if not math.isfinite(memory_bytes):
        raise ValueError(
            f"rank {rank} has a memory of {memory_bytes} bytes: leave its limit at the batch"
        )
    fits = math.floor((memory_bytes - fixed_bytes) / sample_bytes)
    if fits < 1:
        raise ValueError(
            f"rank {rank} has no memory for one sample: of its {memory_bytes:,.0f} bytes the model takes "
            f"{fixed_bytes:,.0f}, and a sample {sample_bytes:,.0f}. Leave the rank out, cut the model further "
            "(sharding, a pipeline), or keep fewer activations (recomputation)"
        )
    return fits


def places(shares: Sequence[int]) -> list[range]:
    """Which samples of the batch are each rank's: one rank's after the other's."""
    ends = list(accumulate(shares))
    return [range(end - share, end) for share, end in zip(shares, ends, strict=True)]


def ideal_seconds(total: float, speeds: Sequence[float]) -> float:
    """Total work / total speed: no division of the work ends sooner."""
    return total / sum(speeds)


def step_seconds(shares: Sequence[int], speeds: Sequence[float]) -> float:
    """Seconds of a step with these shares: the slowest rank's."""
    return max(share / speed for share, speed in zip(shares, speeds, strict=True))


def _within(
    total: int, speeds: Sequence[Fraction], limits: Sequence[int], least: int
) -> list[Fraction]:
    """The exact proportions, none below `least` or above its limit, that add up to the total.

    Ranks outside their bounds are set to them, those on the side where more is too much first, and the rest is divided
    again: on the other side a rank may be inside then.
    """
    exact = [Fraction(0)] * len(speeds)
    free = list(range(len(speeds)))
    left = Fraction(total)
    while free:
        each = left / sum(speeds[rank] for rank in free)
        for rank in free:
            exact[rank] = each * speeds[rank]
        above = {rank: exact[rank] - limits[rank] for rank in free if exact[rank] > limits[rank]}
        below = {rank: least - exact[rank] for rank in free if exact[rank] < least}
        if not above and not below:
            break
        worse = above if sum(above.values()) >= sum(below.values()) else below
        for rank in worse:
            exact[rank] = Fraction(limits[rank] if worse is above else least)
            left -= exact[rank]
            free.remove(rank)
    return exact


def _check(total: int, speeds: Sequence[float], limits: Sequence[int], least: int) -> None:
    size = len(speeds)
    if not _is_whole(total) or total < 1:
        raise ValueError(f"a batch has 1 sample or more; got {total!r}")
    if not size or not all(0 < speed < math.inf for speed in speeds):
        raise ValueError(
            f"each rank has a speed above 0, in samples per second; got {list(speeds)}. Leave out a rank that has none"
        )
    if len(limits) != size or not all(map(_is_whole, limits)):
        raise ValueError(
            f"{plural(size, 'rank')} need as many limits, in whole samples; got {list(limits)}"
        )
    if not _is_whole(least) or not 0 <= least * size <= total:
        raise ValueError(
            f"{plural(size, 'rank')} cannot have {least!r} samples each of a batch of {total}: take a larger batch, "
            "fewer ranks, or a smaller `least`"
        )
    for rank, limit in enumerate(limits):
        if limit < max(1, least):
            raise ValueError(
                f"rank {rank} has memory for {plural(max(0, limit), 'sample')}, and needs it for {max(1, least)}: "
                "leave the rank out, or cut the model further"
            )
    if sum(limits) < total:
        raise ValueError(
            f"the batch has {plural(total, 'sample')}, and the ranks have memory for {sum(limits)} ({list(limits)}): "
            "take a smaller batch, or accumulate gradients over several"
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
