"""DiLoCo: hundreds of local steps of AdamW, then one step of an outer optimizer on what they all have changed.

    optimizer = DiLoCo(model, torch.optim.AdamW(model.parameters(), lr=4e-4), period=500)
    loss(model(x), y).backward()       # this rank's own gradient
    optimizer.step()                   # in every 500th step, the outer one

    x_r   <- AdamW(x_r)                                in each step, from the same x, on each rank r
    delta  = x - 1/p sum_r x_r                         after every H of them: a gradient, in effect, over H steps
    x     <- Nesterov(x, delta);  x_r <- x

An outer step of learning rate 1 without momentum takes the mean: local SGD. Momentum carries on what the rounds before
agreed on, so that H may be far larger: the paper trains language models on islands that the internet joins, with
H = 500, outer learning rate 0.7 and momentum 0.9. The inner optimizer's state stays on its rank.
Source: Douillard et al. (arXiv 2311.08105), algorithm 1.

Bytes that all ranks together send in a step, N bytes of parameters (ring): 2 (p - 1) (N + 32) / H, with 32 bytes of
agreement; running statistics besides. Memory per rank besides the inner optimizer's: x and its momentum, 2 N; 2 N more
during a meeting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from dtcourse.asynchronous.local_updates.flat import average, average_tensors, flattened, write_back
from dtcourse.asynchronous.local_updates.local_optimizer import LocalOptimizer, check_period
from dtcourse.parameters.replicas import Group


class DiLoCo(LocalOptimizer):
    """Takes `optimizer`'s steps on each rank, and after every `period` of them one outer step, the same on all ranks.

    model, optimizer: as in LocalOptimizer; the optimizer is the inner one
    period:         H, inner steps to an outer one
    outer_lr, outer_momentum, nesterov: of the outer SGD; the defaults are the paper's
    outer:          another outer optimizer, given the flat tensors of x; one that treats each number by itself

    average_buffers: also average floating-point buffers that the state dict has (BatchNorm's running statistics), in a
        meeting, without an outer step of their own. False: each rank keeps its own

    Between two meetings `model` is this rank's; after one it is x, the same on all ranks. Call meet() after the last
    step: where that step has met already, nothing changes.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        period: int = 500,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        nesterov: bool = True,
        *,
        outer: Callable[[list[torch.Tensor]], Optimizer] | None = None,
        average_buffers: bool = True,
        group: Group = None,
        init_sync: bool = True,
    ) -> None:
        check_period(period)
        if not outer_lr > 0 or not 0 <= outer_momentum < 1:
            raise ValueError(
                f"outer_lr is above 0 and outer_momentum in [0, 1); got {outer_lr} and {outer_momentum}"
            )
        self.period, self.average_buffers = period, average_buffers
        settings = {
            "period": period,
            "outer_lr": outer_lr,
            "outer_momentum": outer_momentum,
            "nesterov": nesterov,
            "average_buffers": average_buffers,
        }
        super().__init__(model, optimizer, settings, group, init_sync)
        # x, in flat tensors: where the round began.
        self.start = [bucket.buffer() for bucket in flattened(self.parameters)]
        if outer is not None:
            self.outer = outer(self.start)
        else:
            ahead = nesterov and outer_momentum > 0
            self.outer = SGD(self.start, lr=outer_lr, momentum=outer_momentum, nesterov=ahead)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One inner step, and the outer one where it is time."""
        loss = self.inner_step(closure)
        self.steps += 1
        self.steps_since_meeting += 1
        if self.steps_since_meeting >= self.period:
            self.meet()
        return loss

    @torch.no_grad()
    def meet(self) -> None:
        """Takes the outer step now, on what the inner ones have changed since the last. All ranks call it.

        Without an inner step since then there is none: its momentum would move x, and no data stands behind that.
        """
        self.check_unchanged()
        self.check_meeting(period=self.period)
        if self.steps_since_meeting == 0:
            return
        buckets = flattened(self.parameters)
        for bucket, start in zip(buckets, self.start, strict=True):
            torch.sub(start, bucket.buffer(), out=bucket.buffer())
        average(buckets, self.group)
        for bucket, start in zip(buckets, self.start, strict=True):
            start.grad = bucket.buffer()
        self.outer.step()
        for bucket, start in zip(buckets, self.start, strict=True):
            start.grad = None
            bucket.set_buffer(start)
        write_back(buckets)
        if self.average_buffers and (statistics := self.saved_buffers()):
            average_tensors(statistics, self.group)
        self.steps_since_meeting = 0

    # --- state ----------------------------------------------------------------------------------------------

    def own_state(self) -> dict[str, Any]:
        """The round, where it began, and the outer optimizer."""
        start = [x.clone() for x in self.start]
        return {**super().own_state(), "start": start, "outer": self.outer.state_dict()}

    @torch.no_grad()
    def load_own_state(self, state: dict[str, Any]) -> None:
        """Goes on from there. Raises ValueError where it is another model's."""
        saved, here = [len(x) for x in state["start"]], [len(x) for x in self.start]
        if saved != here:
            raise ValueError(
                f"the saved round began with {saved} numbers, this model has {here}: it is another model's"
            )
        super().load_own_state(state)
        for start, value in zip(self.start, state["start"], strict=True):
            start.copy_(value)
        self.outer.load_state_dict(state["outer"])
