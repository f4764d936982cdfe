"""Local SGD: each rank takes H steps of its own, then all ranks take the mean of their parameters.

    optimizer = LocalSGD(model, torch.optim.SGD(model.parameters(), lr=0.1), period=8)
    loss(model(x), y).backward()       # this rank's own gradient
    optimizer.step()                   # in every 8th step, the mean

    x_r <- x_r - lr g_r(x_r)                     in each step, on each rank r
    x_r <- 1/p sum_s x_s                         after every H of them

With H = 1 and plain SGD the mean of p steps is the step of the mean gradient: DDP. With a larger H the ranks drift
apart in between, each towards its own data, and the mean of their ends is not where one process would have come. What
is saved is messages: only one step in H sends any. Source: Stich (ICLR 2019, arXiv 1805.09767); Lin et al. (arXiv
1808.07217) for post-local SGD, which averages gradients in each step first, as DDP does, and goes over to local steps
later: `synchronous_steps`.

Bytes that all ranks together send in a step, N bytes of parameters (ring): 2 (p - 1) N / H; 2 (p - 1) N, as DDP, in
the synchronous steps. In a meeting N counts running statistics too, and with average_state the momentum; the ranks'
agreement adds 48 bytes to it. Memory: N more during a meeting, nothing in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from dtcourse.asynchronous.local_updates.flat import average_tensors
from dtcourse.asynchronous.local_updates.local_optimizer import LocalOptimizer, check_period
from dtcourse.parameters.replicas import Group


class LocalSGD(LocalOptimizer):
    """Averages the model over the ranks in every `period`-th step of `optimizer`.

    model, optimizer: as in LocalOptimizer; the model may be in DistributedDataParallel, ours or PyTorch's. Over the
        same ranks, it averages the gradients of the synchronous steps, while backward runs, and is told to leave the
        local ones alone. Over other ranks (each node's, and `group` is across the nodes) it goes on in all steps
    period:            H, local steps from one mean to the next
    synchronous_steps: so many steps first with averaged gradients (post-local SGD). Without DDP they are averaged in
        `step`, and a parameter without a gradient counts as zero
    average_state:     also average what the optimizer keeps for each number of a parameter (momentum, Adam's moments).
        Default: each rank keeps its own
    average_buffers:   also average floating-point buffers that the state dict has. So after a meeting the ranks'
        models are the same; between meetings BatchNorm's running statistics are each rank's own. The mean of the
        ranks' running variances leaves out how far their means lie apart. False: each rank keeps its own

    `period` may be changed, on all ranks in the same step (AdaComm does). Call average() after the last step: a model
    between two meetings is one rank's.
    """

    takes_ddp = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        period: int,
        synchronous_steps: int = 0,
        *,
        average_state: bool = False,
        average_buffers: bool = True,
        group: Group = None,
        init_sync: bool = True,
    ) -> None:
        check_period(period)
        if synchronous_steps < 0:
            raise ValueError(f"synchronous_steps is a number of steps; got {synchronous_steps}")
        self.period, self.synchronous_steps = period, synchronous_steps
        self.average_state, self.average_buffers = average_state, average_buffers
        settings = {
            "period": period,
            "synchronous_steps": synchronous_steps,
            "average_state": average_state,
            "average_buffers": average_buffers,
        }
        super().__init__(model, optimizer, settings, group, init_sync)
        self._tell_ddp()

    @property
    def is_synchronous(self) -> bool:
        """Whether the next step is one with averaged gradients."""
        return self.steps < self.synchronous_steps

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step of the inner optimizer; the mean of all ranks' models where it is time."""
        if self.is_synchronous:
            loss = self._synchronous_step(closure)
        else:
            loss = self.inner_step(closure)
            self.steps_since_meeting += 1
        self.steps += 1
        self._tell_ddp()
        if self.steps_since_meeting >= self.period:
            self.average()
        return loss

    def average(self) -> None:
        """Meets now: every rank's model becomes the mean of all. All ranks call it; a new period begins."""
        self.check_unchanged()
        state = self._averaged_state()
        self.check_meeting(period=self.period, state=[name for name, _ in state])
        buffers = self.saved_buffers() if self.average_buffers else []
        tensors = [*self.parameters, *buffers, *(tensor for _, tensor in state)]
        average_tensors(tensors, self.group)
        self.steps_since_meeting = 0

    # --- what is averaged -----------------------------------------------------------------------------------

    def _averaged_state(self) -> list[tuple[str, torch.Tensor]]:
        """States that have a number for each number of their parameter; a step count has not."""
        if not self.average_state:
            return []
        return [
            (f"{kind} of {name}", value)
            for parameter, name in self.names.items()
            for kind, value in sorted(self.state.get(parameter, {}).items())
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape
        ]

    # --- post-local SGD -------------------------------------------------------------------------------------

    def _synchronous_step(self, closure: Callable[[], Any] | None) -> Any:
        if self.in_ddp:
            return self.inner_step(closure)
        if closure is None:
            # Before the mean, since the ranks' scales may differ. One rank's inf is in the mean of all.
            self.unscale()
            self._average_gradients()
            if self.under_scaler and not all(p.grad.isfinite().all() for p in self.parameters):  # type: ignore[union-attr]
                return None
            return self.optimizer.step()

        def averaged() -> Any:
            loss = closure()
            self._average_gradients()
            return loss

        return self.optimizer.step(averaged)

    def _average_gradients(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        average_tensors([p.grad for p in self.parameters], self.group)

    def _tell_ddp(self) -> None:
        """What no_sync() does, from one step to the next."""
        if self.in_ddp:
            self.model.require_backward_grad_sync = self.is_synchronous  # type: ignore[assignment]

    def own_state(self) -> dict[str, Any]:
        """Where this rank stands in its round, which may have another period by now."""
        return {**super().own_state(), "period": self.period}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Goes on from there, with the period that was in force."""
        super().load_own_state(state)
        self.period = state["period"]
        self._tell_ddp()
