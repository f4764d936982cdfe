"""Training under a guard, for its tests: batches by number, one of them bad, and all that a run leaves behind."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import nn

from dtcourse.fault_tolerance import RandomStates
from dtcourse.fault_tolerance.fingerprints import digest
from dtcourse.fault_tolerance.guard import LossGuard, Tensors


def model_of(seed: int = 0) -> nn.Sequential:
    """With all that a forward changes: statistics of a batch, and random numbers."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
    ).double()


def batch(number: int, rank: int = 0, bad: str = "") -> tuple[torch.Tensor, torch.Tensor]:
    """The same whenever it is asked for. bad: "nan": one sample has one; "far": targets are 1,000 times as large"""
    generator = torch.Generator().manual_seed(1000 * rank + number)
    x = torch.randn(8, 6, generator=generator, dtype=torch.double)
    y = torch.randn(8, 3, generator=generator, dtype=torch.double)
    if bad == "nan":
        x[3, 2] = math.nan
    return x, 1000 * y if bad == "far" else y


class Run:
    """A model, an optimizer with states, and a schedule."""

    def __init__(self, wrap=lambda model: model) -> None:
        self.model = model_of()
        self.wrapped = wrap(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: 1 / (1 + n))

    def touched(self) -> list:
        return [Tensors(self.model, parameters=False), RandomStates()]

    def all_parts(self) -> list:
        return [Tensors(self.model), self.optimizer, self.schedule, RandomStates()]

    def gradients(self) -> list[torch.Tensor | None]:
        return [p.grad for p in self.model.parameters()]

    def train(self, guard: LossGuard, numbers: Iterable[int], bad=None, rank: int = 0) -> list:
        """bad: what is wrong with which batch, by number: of this rank"""
        verdicts = []
        for number in numbers:
            guard.begin()
            self.optimizer.zero_grad()
            x, y = batch(number, rank, (bad or {}).get(number, ""))
            loss = F.mse_loss(self.wrapped(x), y)
            loss.backward()
            verdicts.append(guard.look(loss, self.gradients()))
            if verdicts[-1].take:
                self.optimizer.step()
                self.schedule.step()
        return verdicts

    def left(self) -> str:
        """A number for all bits of it."""
        return digest([part.state_dict() for part in self.all_parts()])
