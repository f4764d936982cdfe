"""Balance that moves: shares follow measured speed, and stay where moving would gain too little, or only seems to.

    balance = Balance(total=256, limits=[64, 64, 256, 256])
    ...
        mine = balance.of(len(x))                        # this rank's samples of the batch, a range
    ...
        balance.after(seconds, len(mine))                # of this rank's own work; all ranks call it in each step

After a step all ranks know each other's seconds per sample (capability.py), make the shares that would be best
(shares.py), and take these if that gains enough (hysteresis.py). So an outlier moves nothing, and noise makes the
balance slower to move, not restless. After a move the measurements begin anew: where a step has a cost that does not
depend on the share (the weights are read once), seconds per sample do. Shares in proportion to samples per second come
to equal times in a few moves all the same, as long as a larger share takes longer; where it does not, the move is
undone.

The last batch of an epoch is smaller: `of` gives each rank its part of that. Where all batches are whole, `mine` is as
good, and `after` needs no samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from dtcourse.heterogeneous.capability import Capability, Meter, of_all_ranks
from dtcourse.heterogeneous.hysteresis import Hysteresis
from dtcourse.heterogeneous.shares import places, proportional_shares
from dtcourse.parameters.agreement import check_agreed
from dtcourse.parameters.replicas import Group

UNMEASURED = Capability(float("nan"), 0.0, -1)  # what a rank says that should have measured


class Balance:
    """The shares of each step's batch, the same on all ranks. All of them call `after` in each step.

    total:     samples of a batch
    limits:    the most that each rank's memory holds (limits_of_all_ranks); default: none
    least:     what each rank gets at least. A rank with 0 samples is not measured any more, and its last figure stays;
               one that never had any counts as the fastest of the others, and is found out
    threshold, patience: as Hysteresis's
    window:    as Meter's;  settle: measurements of the same shares before they may change; 3 at least tell an error
    speeds:    of all ranks, where they are known before the first step: those of `measured`

    shares: by rank, of a whole batch; at first equal, or by `speeds`, within the limits
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
            "limits": _numbers(limits),
            "least": least,
            "threshold": threshold,
            "patience": patience,
            "window": window,
            "settle": settle,
            "speeds": _numbers(speeds),
        }
        advice = (
            "Each rank would cut other shares: give all of them every rank's limits and speeds, alike "
            "(limits_of_all_ranks, measured)"
        )
        check_agreed(settings, group, advice)
        for name, given in (("limits", limits), ("speeds", speeds)):
            if given is not None and not isinstance(settings[name], list):
                raise ValueError(f"{name} are a list, with a number of each rank; got {given!r}")
        self.total, self.least, self.group = total, least, group
        self.limits = None if limits is None else list(limits)
        speeds = [1.0] * dist.get_world_size(group) if speeds is None else list(speeds)
        self.shares = proportional_shares(total, speeds, self.limits, least)
        self.hysteresis = Hysteresis(threshold, patience)
        self.meter, self.settle = Meter(window), settle
        self.steps, self.moved = 0, list[int]()
        self._last = Capability(float("nan"), 0.0, 0)  # from before this rank had no samples
        self._earlier = self.shares  # before the last move

    @property
    def mine(self) -> range:
        """This rank's samples of a whole batch."""
        return places(self.shares)[dist.get_rank(self.group)]

    def of(self, samples: int) -> range:
        """This rank's samples of a batch of so many, which is whole or smaller: shares as these, and none larger.

        Each rank that has a share gets `least` of them, where there are as many. Raises ValueError for a larger batch.
        """
        if samples > self.total or samples < 1:
            raise ValueError(
                f"a batch has 1 to {self.total} samples, the total of this balance; got {samples}"
            )
        working = [rank for rank, share in enumerate(self.shares) if share]
        most = [self.shares[rank] for rank in working]
        least = self.least if samples >= self.least * len(working) else 0
        shares = [0] * len(self.shares)
        for rank, share in zip(
            working, proportional_shares(samples, most, most, least), strict=True
        ):
            shares[rank] = share
        return places(shares)[dist.get_rank(self.group)]

    def after(self, seconds: float | None, samples: int | None = None) -> bool:
        """A step is over. Whether the next one has other shares: then all ranks read other samples.

        seconds: of this rank's own work (WeightedDataParallel.seconds); ignored where it had no samples
        samples: how many it had; default: its share of a whole batch

        Raises ValueError on all ranks where one had samples, and no time was measured.
        """
        done = len(self.mine) if samples is None else samples
        if done > 0:
            measured = seconds is not None and 0 < seconds < math.inf
            if seconds is not None and measured:
                self.meter.add(seconds, done)
            self._last = self.meter.capability() if measured else UNMEASURED
        known = of_all_ranks(self._last, self.group)
        if lacking := [rank for rank, one in enumerate(known) if one.number < 0]:
            raise ValueError(
                f"rank {lacking[0]} has measured no time for its samples: pass the seconds of its own forward and "
                "backward, above 0"
            )
        step, self.steps = self.steps, self.steps + 1
        if any(
            share and one.number < self.settle
            for one, share in zip(known, self.shares, strict=True)
        ):
            return False
        fastest = min((one for one in known if one.number), key=lambda one: one.seconds)
        better = self._better([one if one.number else fastest for one in known])
        if better is None:
            return False
        self._earlier, self.shares = self.shares, better
        self.moved.append(step)
        self.meter.clear()
        return True

    def state_dict(self) -> dict[str, list[int]]:
        """For a checkpoint: the shares, so that a restart does not begin with equal ones. Speeds are measured anew."""
        return {"shares": list(self.shares)}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        """Takes the shares of a checkpoint; all ranks load the same. Raises ValueError for those of another job."""
        shares, most = list(state["shares"]), self.limits or [self.total] * len(self.shares)
        fit = len(shares) == len(most) and sum(shares) == self.total
        if not fit or any(not self.least <= s <= m for s, m in zip(shares, most, strict=True)):
            raise ValueError(
                f"shares {shares} are of another number of ranks, batch or limits than this balance's, {self.shares} "
                f"now and at most {most}: begin without them"
            )
        self.shares = self._earlier = shares
        self.meter.clear()

    def _better(self, known: Sequence[Capability]) -> list[int] | None:
        """The shares to take from here on; None where these stay."""
        better = proportional_shares(
            self.total, [one.speed for one in known], self.limits, self.least
        )
        now, then = (
            [share * one.seconds for share, one in zip(shares, known, strict=True)]
            for shares in (self.shares, better)
        )
        if self.hysteresis.goes_back(now):
            return self._earlier
        return better if self.hysteresis.moves(now, then, known) else None


def _numbers(given: Any) -> Any:
    """A tuple, a list and a tensor of the same numbers are alike. What is no such thing stays as it is, to be told."""
    try:
        return [float(one) for one in given]
    except (TypeError, ValueError):
        return given
