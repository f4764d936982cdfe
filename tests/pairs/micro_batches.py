"""What a pipeline is held against: one process that takes the same micro-batches, one after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dtcourse import checkpoint
from dtcourse.models import TransformerConfig
from dtcourse.parameters.whole import full_state_dict
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


def write_alone(config: TransformerConfig, folder: str, steps: int, parts: int = 1) -> Any:
    """The same in one process, without the layer that nobody uses."""
    model = build(config)
    del model.unused
    optimizer = sgd(model)
    for step in range(steps):
        step_alone(model, optimizer, config, step, parts)
    checkpoint.save(folder, model, optimizer)
    return full_state_dict(model)


def read_alone(config: TransformerConfig, folder: str, steps: int, parts: int = 1) -> Any:
    model = build(config, seed=7)
    del model.unused
    optimizer = sgd(model)
    checkpoint.load(folder, model, optimizer)
    loaded = full_state_dict(model)
    step_alone(model, optimizer, config, steps, parts)
    return loaded, full_state_dict(model)


def step_alone(model: Any, optimizer: Any, config: Any, step: int, parts: int) -> None:
    backward_alone(model, optimizer, config, step, parts)
    nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    optimizer.step()
