"""Trains the same model on ranks and in one process, and holds the gradients against each other after every step.

`wrap` turns a plain model into the technique's form of it; the harness does the rest: another random start on every
rank, the rank's part of the batch, micro-batches, SGD.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.verify.cases import Case
from dtcourse.verify.gradients import Gradients, gradients_of

LEARNING_RATE = 0.1
SAMPLES = 24  # of the whole batch: divisible by 1, 2, 3, 4 ranks times 1, 2 micro-batches; by 8 on 1 and 3 ranks


@dataclass
class Steps:
    """What a training of a few steps left behind, step by step."""

    gradients: list[Gradients]
    losses: list[float]
    parameters: dict[str, torch.Tensor]


def one_process(case: Case, steps: int = 3, samples: int = SAMPLES) -> Steps:
    """The truth: one process, the whole batch, plain SGD."""
    model = case.build(0)
    return _train(model, model, case, steps, samples, rank=0, size=1, micro_batches=1)


def on_ranks(
    wrap: Callable[[nn.Module], nn.Module],
    case: Case,
    steps: int = 3,
    micro_batches: int = 1,
    samples: int = SAMPLES,
    after_backward: Callable[[nn.Module], Any] = lambda model: None,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    read: Callable[[nn.Module], Gradients] | None = None,
) -> Steps:
    """The same training, data parallel, to be called inside a rank.

    wrap:           plain model -> what is trained (its parameters are the plain model's)
    after_backward: called with what `wrap` returned, where the technique wants a call before the optimizer's step
    optimizer:      what `wrap` returned -> its optimizer, where that is part of the technique; default plain SGD
    read:           what `wrap` returned -> whole gradients by the plain model's names, where ranks keep parts of them
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    model = case.build(0 if rank == 0 else 1000 + rank)  # rank 0's start is the one that must count
    torch.manual_seed(1000 + rank)  # and no rank shares its random state with another
    wrapped = wrap(model)
    return _train(
        wrapped, model, case, steps, samples, rank, size, micro_batches, after_backward, optimizer, read
    )  # fmt: skip


def _train(
    wrapped: nn.Module, model: nn.Module, case: Case, steps: int, samples: int, rank: int, size: int,
    micro_batches: int, after_backward: Callable[[nn.Module], Any] = lambda model: None,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    read: Callable[[nn.Module], Gradients] | None = None,
) -> Steps:  # fmt: skip
    if samples % (size * micro_batches):
        raise ValueError(
            f"{samples} samples do not divide into {size} ranks times {micro_batches} micro-batches"
        )
    if make_optimizer is not None:
        optimizer = make_optimizer(wrapped)
    else:
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=LEARNING_RATE)
    gradients, losses = [], []
    for step in range(steps):
        inputs, targets = case.batch(samples, step)
        mine = [t.chunk(size)[rank].chunk(micro_batches) for t in (inputs, targets)]
        optimizer.zero_grad()
        total = 0.0
        for i, (x, y) in enumerate(zip(*mine, strict=True)):
            last = i == micro_batches - 1
            quiet: AbstractContextManager[Any] = nullcontext()
            if not last and hasattr(wrapped, "no_sync"):
                quiet = cast(Any, wrapped).no_sync()
            with quiet:
                loss = case.loss(wrapped(x), y) / micro_batches
                loss.backward()
            total += loss.item()
        after_backward(wrapped)
        gradients.append(read(wrapped) if read is not None else gradients_of(model))
        losses.append(total)
        optimizer.step()
    return Steps(gradients, losses, {n: p.detach().clone() for n, p in model.named_parameters()})
