"""AdaComm: a long period first, while the loss is high and messages are what costs; a short one when averaging counts.

    optimizer = LocalSGD(model, torch.optim.SGD(model.parameters(), lr=0.1), period=16)
    adacomm = AdaComm(optimizer, interval=100)
    ...
    optimizer.step()
    adacomm.step(loss)                       # after each step, with this rank's loss

The error of local SGD falls as fast as that of SGD at first, and then stops at a floor that grows with the period. So
at the end of each interval the period is chosen anew, from the loss F now and at the start (and the learning rate):

    H = ceil( sqrt( lr_0 / lr * F / F_0 ) * H_0 )
    H = floor( H_before / 2 )  where that would not be shorter, though lr is what it was before; at least 1

Source: Wang and Joshi (SysML 2019, arXiv 1810.08313), section 4. There an interval is T_0 seconds on the clock; here
it is a number of steps, which no two ranks count differently. All ranks take the mean of their losses, so all choose
the same. The paper leaves open how H / 2 is rounded.

Bytes: one all-reduce of 16 bytes at the start and in each interval.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

from dtcourse.asynchronous.local_updates.local_sgd import LocalSGD
from dtcourse.parameters.agreement import check_agreed


class AdaComm:
    """Chooses `optimizer.period` anew after every `interval` steps, at the first meeting from then on.

    optimizer: its period is H_0, the first and longest
    interval:  steps from one choice to the next
    shrink:    gamma, by which a period gets shorter where the loss would not make it so: 1/2 in the paper

    The loss of a choice is the mean, over the ranks and over the steps since the meeting before, of what `step` got;
    F_0 is the first step's. periods: those chosen so far, the first one too.
    """

    def __init__(self, optimizer: LocalSGD, interval: int, shrink: float = 0.5) -> None:
        if interval < 1:
            raise ValueError(f"interval is a number of steps, 1 or more; got {interval}")
        if not 0 < shrink <= 1:
            raise ValueError(f"shrink is a factor, above 0 and at most 1; got {shrink}")
        self.optimizer, self.interval, self.shrink = optimizer, interval, shrink
        self.periods = [optimizer.period]
        self.first_loss: float | None = None
        self.first_lr = self.lr = self._lr_now()
        self.next_choice = optimizer.steps + interval
        self._losses: list[float] = []
        check_agreed(
            {"interval": interval, "shrink": shrink},
            optimizer.group,
            "Workers that differ in this come to have different periods: pass the same on every rank",
        )

    def step(self, loss: torch.Tensor | float) -> None:
        """Takes the loss of the step that the optimizer has just taken. All ranks call it, after each step."""
        # post-local SGD: the first interval begins with the local steps
        if self.optimizer.is_synchronous:
            self.next_choice = self.optimizer.steps + self.interval
            return
        self._losses.append(float(loss.detach() if isinstance(loss, torch.Tensor) else loss))
        if self.first_loss is None:
            self.first_loss = self._mean_loss()
            if not 0 < self.first_loss < math.inf:
                raise ValueError(
                    f"AdaComm compares losses with the first, which must be above 0; it is {self.first_loss}"
                )
        if self.optimizer.steps_since_meeting:
            return
        if self.optimizer.steps >= self.next_choice:
            self._choose()
            self.next_choice = self.optimizer.steps + self.interval
        self._losses.clear()

    def _choose(self) -> None:
        assert self.first_loss is not None, "the first step has set it"
        before, lr = self.optimizer.period, self._lr_now()
        ratio = self._mean_loss() / self.first_loss
        if lr and self.first_lr:  # a warm-up begins at 0
            ratio *= self.first_lr / lr
        # A loss that is no number says nothing about the period.
        wanted = math.ceil(math.sqrt(ratio) * self.periods[0]) if 0 <= ratio < math.inf else before
        if wanted >= before and lr == self.lr:
            wanted = math.floor(self.shrink * before)
        self.lr = lr
        self.optimizer.period = max(1, wanted)
        self.periods.append(self.optimizer.period)

    def _mean_loss(self) -> float:
        """The mean of the losses at hand, over the ranks too: the same on all."""
        sums = torch.tensor(
            [sum(self._losses), len(self._losses)],
            dtype=torch.float64,
            device=self.optimizer.device,
        )
        dist.all_reduce(sums, group=self.optimizer.group)
        total, count = sums.tolist()
        return total / count

    def _lr_now(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def state_dict(self) -> dict[str, Any]:
        """What has been chosen so far, and what the next choice will look at."""
        kept = ("first_loss", "first_lr", "lr", "next_choice")
        lists = {"periods": list(self.periods), "losses": list(self._losses)}
        return {**{name: getattr(self, name) for name in kept}, **lists}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there."""
        for name in ("first_loss", "first_lr", "lr", "next_choice"):
            setattr(self, name, state_dict[name])
        self.periods = list(state_dict["periods"])
        self._losses = list(state_dict["losses"])
