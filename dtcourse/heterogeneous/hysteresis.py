"""When to move: by what it would gain, how sure that is, and what came of the last move.

A move is worth it if the step would be faster by more than

    threshold + 2 standard errors + sqrt(2 ln p) standard errors of the slowest one

The first ones are of the ratio of the two ranks that decide: the slowest now, and the one that would be slowest then. A
third rank's noise holds nobody up. The last term stands for luck: the slowest of p ranks, each with an error, looks
slower than it is by about so much. Few measurements say little of their error, so none counts as less than the median
rank's. It must be so `patience` times in a row; two looks share most of their measurements, so that is a short wait
for more of them rather than a second opinion.

What a move gains is a prediction: that a rank's time is its work / its speed. Where it is not (a GPU that is not full,
costs that are wrong) the step may become no faster, and the next prediction is as wrong. So the first look after a move
compares. If nothing was gained, all goes back to how it was, and stays until some rank's speed has changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_low

from dtcourse.heterogeneous.capability import Capability

SURE = 2.0  # standard errors
CHANGED = 1.2  # times as fast or as slow: another speed than before


class Hysteresis:
    """Whether to move.

    threshold: the least gain, as a fraction of the time afterwards: 0.05 is a twentieth
    patience:  how often in a row it must be seen

    Raises ValueError for a threshold that is not above 0, which flaps, or a patience below 1.
    """

    def __init__(self, threshold: float = 0.05, patience: int = 2) -> None:
        if not threshold > 0 or patience < 1:
            raise ValueError(
                f"threshold is above 0 and patience 1 or more, or shares flap; got {threshold} and {patience}"
            )
        self.threshold, self.patience = threshold, patience
        self.seen = 0
        self._before: tuple[float, list[float]] | None = None  # until it is seen what came of it
        self._in_vain: list[float] | None = None  # each rank's seconds when a move gained nothing

    def moves(
        self, now: Sequence[float], then: Sequence[float], known: Sequence[Capability]
    ) -> bool:
        """Whether to move.

        now, then: seconds of each rank's work in a step, as it is and as it would be
        known:     what these were worked out from
        """
        each = [one.seconds for one in known]
        if self._in_vain and all(map(_alike, each, self._in_vain)):
            return False
        self._in_vain = None
        deciding = [known[max(range(len(of)), key=of.__getitem__)] for of in (now, then)]
        typical = median_low(one.error / one.seconds for one in known)
        slowest, other = (max(typical, one.error / one.seconds) for one in deciding)
        luck = math.sqrt(2 * math.log(len(known))) * slowest
        sure = SURE * math.hypot(slowest, other) + luck
        gain = max(now) / max(then) - 1.0
        self.seen = self.seen + 1 if gain > self.threshold + sure else 0
        if self.seen < self.patience:
            return False
        self.seen, self._before = 0, (max(now), each)
        return True

    def goes_back(self, now: Sequence[float]) -> bool:
        """Whether the last move is to be undone, since it gained nothing. True at the first look after it at most.

        now: seconds of each rank's work in a step, measured after the move
        """
        if self._before is None:
            return False
        (seconds, each), self._before = self._before, None
        if max(now) < seconds:
            return False
        self._in_vain = each
        return True


def _alike(one: float, other: float) -> bool:
    return max(one, other) < CHANGED * min(one, other)
