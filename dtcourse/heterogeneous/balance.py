"""Balance that moves: shares follow measured speed, and stay where moving would gain too little, or only seems to.

    balance = Balance(total=256, limits=[64, 64, 256, 256])
    ...
        mine = balance.mine                              # this rank's samples of the batch, a range
    ...
        balance.after(seconds)                           # of this rank's own work; all ranks call it in each step

After a step all ranks know each other's seconds per sample (capability.py), and make the shares that would be best
(shares.py). They take these if the step would be faster by more than

    threshold + 2 standard errors of what was measured

and if that was so `patience` times in a row. So an outlier moves nothing, and noise makes the balance slower to move,
not restless. After a move the measurements begin anew: where a step has a cost that does not depend on the share (the
weights are read once), seconds per sample do. Shares in proportion to samples per second come to equal times in a few
moves all the same.

`Hysteresis` is that rule alone, for whatever else can be moved: a pipeline's stages (hybrid/moving.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.distributed as dist

from dtcourse.heterogeneous.capability import Capability, Meter, of_all_ranks
from dtcourse.heterogeneous.shares import places, proportional_shares, step_seconds
from dtcourse.parameters.agreement import check_agreed
from dtcourse.parameters.replicas import Group
from dtcourse.plural import plural

SURE = 2.0  # standard errors
UNMEASURED = Capability(float("nan"), 0.0, -1)  # what a rank says that should have measured


class Hysteresis:
    """Whether to move, by what it would gain.

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

    def moves(self, now: float, then: float, known: Sequence[Capability]) -> bool:
        """Whether a step of `now` seconds is to become one of `then`. known: what both were worked out from."""
        error = max(one.error / one.seconds for one in known)
        gain = now / then - 1.0
        self.seen = self.seen + 1 if gain > self.threshold + SURE * error else 0
        if self.seen < self.patience:
            return False
        self.seen = 0
        return True


class Balance:
    """The shares of each step's batch, the same on all ranks. All of them call `after` in each step.

    total:     samples of a batch
    limits:    the most that each rank's memory holds (samples_that_fit); default: none
    least:     what each rank gets at least. A rank with 0 samples is not measured any more, and its last figure stays
    threshold, patience: as Hysteresis's
    window:    as Meter's;  settle: measurements of the same shares before they may change
    speeds:    of all ranks, where they are known before the first step: those of `measured`

    shares: by rank; at first equal, or by `speeds`, within the limits
    moved:  in which steps they changed, from 0 on

    Raises ValueError as proportional_shares does, and on all ranks where one has other settings.
    """

    def __init__(
        self,
        total: int,
        limits: Sequence[int] | None = None,
        least: int = 1,
        threshold: float = 0.05,
        patience: int = 2,
        window: int = 7,
        settle: int = 3,
        speeds: Sequence[float] | None = None,
        group: Group = None,
    ) -> None:
        settings: dict[str, object] = {
            "total": total,
            "limits": limits and [float(one) for one in limits],
            "least": least,
            "threshold": threshold,
            "patience": patience,
            "window": window,
            "settle": settle,
            "speeds": speeds and [float(one) for one in speeds],
        }
        advice = "Each rank would cut other shares: give all of them every rank's limits and speeds, alike"
        check_agreed(settings, group, advice)
        self.total, self.least, self.group = total, least, group
        self.limits = None if limits is None else list(limits)
        speeds = [1.0] * dist.get_world_size(group) if speeds is None else list(speeds)
        self.shares = proportional_shares(total, speeds, self.limits, least)
        self.hysteresis = Hysteresis(threshold, patience)
        self.meter, self.settle = Meter(window), settle
        self.steps, self.moved = 0, list[int]()
        self._last = Capability(float("nan"), 0.0, 0)  # from before this rank had no samples

    @property
    def mine(self) -> range:
        """This rank's samples of the batch."""
        return places(self.shares)[dist.get_rank(self.group)]

    def after(self, seconds: float | None) -> bool:
        """A step is over. Whether the next one has other shares: then all ranks read other samples.

        seconds: of this rank's own work (WeightedDataParallel.seconds); ignored where it had no samples

        Raises ValueError on all ranks where one had samples, and no time was measured.
        """
        if self.mine:
            measured = seconds is not None and 0 < seconds < math.inf
            if seconds is not None and measured:
                self.meter.add(seconds, len(self.mine))
            self._last = self.meter.capability() if measured else UNMEASURED
        known = of_all_ranks(self._last, self.group)
        if lacking := [rank for rank, one in enumerate(known) if one.number < 0]:
            raise ValueError(
                f"rank {lacking[0]} has measured no time for its {plural(self.shares[lacking[0]], 'sample')}: pass the "
                "seconds of its own forward and backward, above 0"
            )
        step, self.steps = self.steps, self.steps + 1
        if not all(
            one.number >= (self.settle if share else 1)
            for one, share in zip(known, self.shares, strict=True)
        ):
            return False
        speeds = [one.speed for one in known]
        better = proportional_shares(self.total, speeds, self.limits, self.least)
        now, then = step_seconds(self.shares, speeds), step_seconds(better, speeds)
        if not self.hysteresis.moves(now, then, known):
            return False
        self.shares = better
        self.moved.append(step)
        self.meter.clear()
        return True
