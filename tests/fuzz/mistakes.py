"""Techniques with a mistake in them, for the test that the fuzz test finds mistakes."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn

from dtcourse.data_parallel import average_gradients, broadcast_model
from tests.fuzz.techniques import Technique, naive, plain_sgd


def sum_gradients(model: nn.Module) -> None:
    """The division is forgotten."""
    average_gradients(model)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad *= dist.get_world_size()


def own_start(model: Any, program: Any) -> Any:
    """Rank 0's values reach nobody; its buffers do."""
    values = [p.detach().clone() for p in model.parameters()]
    broadcast_model(model)
    for parameter, value in zip(model.parameters(), values, strict=True):
        parameter.data.copy_(value)
    return model


def unequal_messages(model: nn.Module) -> None:
    """A rank sends only what it has: the others wait, or get another parameter's."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


MISTAKES: dict[str, Technique] = {
    t.name: t
    for t in (
        Technique("mistake: a sum", naive, plain_sgd, before_step=sum_gradients, none_is_zero=True),
        Technique("mistake: own start", own_start, plain_sgd, before_step=average_gradients, none_is_zero=True),
        Technique("mistake: what a rank has", naive, plain_sgd, before_step=unequal_messages),
    )
}  # fmt: skip
