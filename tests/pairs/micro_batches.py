"""What a pipeline is held against: one process that takes the same micro-batches, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dtcourse.models import TransformerConfig
from tests.pairs.layouts import BATCH, MAX_NORM, NORMS, batch, sgd
from tests.pairs.pipelines import MICRO_BATCHES, PipedSteps, build


def alone(config: TransformerConfig, parts: int = 1, steps: int = 3) -> PipedSteps:
    """One process, micro-batch by micro-batch, as a balancing loss is about one micro-batch.

    parts: ranks among which a batch is divided: a micro-batch has a part of each one's
    """
    model, found = build(config), PipedSteps()
    optimizer = sgd(model)
    for step in range(steps):
        found.losses.append(backward_alone(model, optimizer, config, step, parts))
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        found.norms.append([nn.utils.get_total_norm(grads, kind).item() for kind in NORMS])
        found.gradients.append(
            {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
        )
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
    found.state = {n: t.clone() for n, t in model.state_dict().items()}
    return found


def backward_alone(model: Any, optimizer: Any, config: Any, step: int, parts: int) -> float:
    optimizer.zero_grad()
    total = 0.0
    for x, y in zip(*(in_micro_batches(t, parts) for t in batch(config, step)), strict=True):
        part = model.loss(x, y) * len(x) / BATCH
        part.backward()
        total += part.item()
    return total


def in_micro_batches(
    x: torch.Tensor, parts: int, number: int = MICRO_BATCHES
) -> list[torch.Tensor]:
    shares = [one.tensor_split(number) for one in x.chunk(parts)]
    return [torch.cat(of_each) for of_each in zip(*shares, strict=True)]


@dataclass(frozen=True)
class Alone:
    """The same as a layout of one rank, without the layer that nobody uses. parts: as of `alone`"""

    parts: int = 1
    ranks = 1

    def training(self, config: TransformerConfig, seed: int = 0) -> AloneRun:
        return AloneRun(config, self.parts, seed)

    def __str__(self) -> str:
        return "one process"


class AloneRun:
    """Its model, and the optimizer."""

    def __init__(self, config: TransformerConfig, parts: int, seed: int) -> None:
        self.config, self.parts, self.wrapped = config, parts, build(config, seed)
        del self.wrapped.unused
        self.optimizer = sgd(self.wrapped)

    def step(self, number: int) -> None:
        backward_alone(self.wrapped, self.optimizer, self.config, number, self.parts)
        nn.utils.clip_grad_norm_(self.wrapped.parameters(), MAX_NORM)
        self.optimizer.step()
