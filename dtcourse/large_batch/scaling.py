"""Learning rate and batch size: the rules, and the schedules that go with them.

The effective batch is ranks x micro-batch x accumulation steps. k times the batch means 1/k of the steps, so:

    linear       lr * k         SGD: k small steps in one direction are one step k times as long
                                (Goyal et al., arXiv 1706.02677)
    square root  lr * sqrt(k)   keeps the variance of a step; common for Adam (Krizhevsky, arXiv 1404.5997)

Both fail at the start, when the weights change fast, so it grows gradually over the first epochs; and both fail
beyond a batch that depends on the problem (noise_scale.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


def effective_batch(micro_batch: int, ranks: int, accumulation: int = 1) -> int:
    """Samples in one optimizer step."""
    for name, value in (
        ("micro_batch", micro_batch),
        ("ranks", ranks),
        ("accumulation", accumulation),
    ):
        if value < 1:
            raise ValueError(f"{name} is at least 1; got {value}")
    return micro_batch * ranks * accumulation


def linear_scaling(base_lr: float, base_batch: int, batch: int) -> float:
    """The learning rate for `batch`, where `base_lr` suits `base_batch`, for SGD."""
    return base_lr * _ratio(base_batch, batch)


def square_root_scaling(base_lr: float, base_batch: int, batch: int) -> float:
    """The same by the square-root rule, for Adam and its relatives."""
    return base_lr * math.sqrt(_ratio(base_batch, batch))


def _ratio(base_batch: int, batch: int) -> float:
    if base_batch < 1 or batch < 1:
        raise ValueError(f"batches have at least one sample; got {base_batch} and {batch}")
    return batch / base_batch


class GradualWarmup(LRScheduler):
    """Raises every group's learning rate linearly from `start_factor` of it to all of it in `steps` steps.

    optimizer:    its learning rates are the ones to reach
    start_factor: Goyal et al. start from the learning rate of one worker, 1 / ranks. With 0 the first step is none
    after:        a scheduler of the same optimizer, built before this one, whose steps count from then on
    """

    def __init__(
        self,
        optimizer: Optimizer,
        steps: int,
        start_factor: float = 0.0,
        after: LRScheduler | None = None,
    ) -> None:
        if steps < 1:
            raise ValueError(f"a warm-up takes at least one step; got {steps}")
        if not 0.0 <= start_factor <= 1.0:
            raise ValueError(
                f"start_factor is a share of the learning rate, 0 to 1; got {start_factor}"
            )
        if after is not None and after.optimizer is not optimizer:
            raise ValueError("`after` is a schedule of another optimizer: build it on this one")
        self.steps, self.start_factor, self.after = steps, start_factor, after
        super().__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        """The learning rates of this step, one per group."""
        done = min(1.0, self.last_epoch / self.steps)
        factor = self.start_factor + (1.0 - self.start_factor) * done
        return [base * factor for base in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        """One optimizer step has been taken."""
        if self.after is not None and self.last_epoch >= self.steps:
            self.after.step()
            self._last_lr = self.after.get_last_lr()
            return
        super().step(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where both schedules stand."""
        state = {k: v for k, v in super().state_dict().items() if k != "after"}
        return {**state, "after": self.after.state_dict() if self.after else None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there."""
        after = state_dict["after"]
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "after"})
        if self.after is not None and after is not None:
            self.after.load_state_dict(after)


class BatchSchedule(LRScheduler):
    """Grows the batch instead of lowering the learning rate (Smith et al., arXiv 1711.00489).

    The noise of SGD grows with lr / batch, so twice the batch stands for half of lr. Where `maximum` stops the
    batch, the learning rate falls by what is missing; before that it stays as it is.

    milestones: steps at which the batch is multiplied by `factor`; maximum: the largest batch, over all ranks.
    `schedule.accumulation(ranks, micro_batch)` says how many micro-batches make the batch of this step.
    """

    def __init__(
        self, optimizer: Optimizer, batch: int, milestones: Sequence[int], factor: int = 2, maximum: int | None = None
    ) -> None:  # fmt: skip
        if batch < 1 or factor < 1:
            raise ValueError(f"batch and factor are at least 1; got {batch} and {factor}")
        if list(milestones) != sorted(set(milestones)):
            raise ValueError(f"milestones are steps in rising order; got {list(milestones)}")
        if maximum is not None and maximum < batch:
            raise ValueError(f"maximum is at least the first batch, {batch}; got {maximum}")
        self.initial, self.milestones, self.factor = batch, list(milestones), factor
        self.maximum = maximum
        super().__init__(optimizer)

    @property
    def wanted(self) -> int:
        """The batch of this step if nothing stopped it."""
        passed = sum(step <= self.last_epoch for step in self.milestones)
        return self.initial * self.factor**passed

    @property
    def batch(self) -> int:
        """Samples in this step, over all ranks."""
        return self.wanted if self.maximum is None else min(self.wanted, self.maximum)

    def get_lr(self) -> list[float | torch.Tensor]:
        """The learning rates of this step, one per group: lower by what the batch could not grow."""
        return [base * self.batch / self.wanted for base in self.base_lrs]

    def accumulation(self, ranks: int, micro_batch: int) -> int:
        """Micro-batches of each rank in this step. ValueError where the batch does not divide."""
        whole, rest = divmod(self.batch, ranks * micro_batch)
        if rest or not whole:
            raise ValueError(
                f"a batch of {self.batch} is no multiple of {ranks} ranks times {micro_batch}"
            )
        return whole
