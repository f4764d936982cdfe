"""Trains the same model on ranks and in one process, and holds the gradients against each other after every step.

`wrap` turns a plain model into the technique's form of it; the harness does the rest: another random start on every
rank, the rank's part of the batch, micro-batches, SGD.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.plural import plural
from dtcourse.verify.cases import Case
from dtcourse.verify.gradients import Gradients, gradients_of

LEARNING_RATE = 0.1
SAMPLES = 24  # of the whole batch: divisible by 1, 2, 3, 4 ranks times 1, 2 micro-batches; by 8 on 1 and 3 ranks


@dataclass(frozen=True)
class Backward:
    """One backward of a rank: through the sum of several losses, each of a forward of its own.

    losses: what is trained -> a loss of this rank
    sync:   whether it averages the gradients; False inside no_sync(), where the technique has that
    """

    losses: Sequence[Callable[[nn.Module], torch.Tensor]]
    sync: bool = True


@dataclass
class Steps:
    """What a training of a few steps left behind, step by step."""

    gradients: list[Gradients]
    losses: list[float]
    parameters: dict[str, torch.Tensor]


def one_process(case: Case, steps: int = 3, samples: int = SAMPLES) -> Steps:
    """The truth: one process, the whole batch, plain SGD."""
    model = case.build(0)
    return train(model, model, _plan(case, steps, samples, rank=0, size=1, micro_batches=1))


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
    plan = _plan(case, steps, samples, rank, size, micro_batches)
    return train(wrapped, model, plan, optimizer=optimizer, before_step=after_backward, read=read)


def _plan(
    case: Case, steps: int, samples: int, rank: int, size: int, micro_batches: int
) -> list[list[Backward]]:
    """A rank's part of each step's batch, in equal micro-batches, of which the last averages."""
    if samples % (size * micro_batches):
        raise ValueError(
            f"{plural(samples, 'sample')} cannot be divided into {plural(size, 'rank')} times "
            f"{plural(micro_batches, 'micro-batch', 'micro-batches')}"
        )
    plan = []
    for step in range(steps):
        mine = [t.chunk(size)[rank].chunk(micro_batches) for t in case.batch(samples, step)]
        losses = [
            lambda model, x=x, y=y: case.loss(model(x), y) / micro_batches
            for x, y in zip(*mine, strict=True)
        ]
        plan.append(
            [Backward([loss], sync=i == micro_batches - 1) for i, loss in enumerate(losses)]
        )
    return plan


def nothing(model: nn.Module) -> None:
    """Where a technique wants no call."""


def train(
    wrapped: nn.Module,
    model: nn.Module,
    plan: Sequence[Sequence[Backward]],
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    after_backward: Callable[[nn.Module], Any] = nothing,
    before_step: Callable[[nn.Module], Any] = nothing,
    read: Callable[[nn.Module], Gradients] | None = None,
    read_parameters: Callable[[nn.Module], dict[str, torch.Tensor]] | None = None,
    set_to_none: bool = True,
) -> Steps:
    """Takes a step for each entry of `plan`: its backwards, one after the other, then the optimizer.

    wrapped, model:  what is trained, and the plain model in it
    after_backward, before_step: called with `wrapped` after each backward, and once before the optimizer's step
    set_to_none:     how gradients are cleared before each step
    the others:      as in `on_ranks`; read_parameters: what `wrapped` is -> whole parameters by the plain model's names
    """
    if optimizer is not None:
        chosen = optimizer(wrapped)
    else:
        trained = [p for p in model.parameters() if p.requires_grad]
        chosen = torch.optim.SGD(trained, lr=LEARNING_RATE)
    gradients, losses = [], []
    for step in plan:
        chosen.zero_grad(set_to_none=set_to_none)
        total = 0.0
        for backward in step:
            quiet: AbstractContextManager[Any] = nullcontext()
            if not backward.sync and hasattr(wrapped, "no_sync"):
                quiet = cast(Any, wrapped).no_sync()
            with quiet:
                loss = reduce(torch.add, [part(wrapped) for part in backward.losses])
                loss.backward()
            after_backward(wrapped)
            total += loss.item()
        before_step(wrapped)
        gradients.append(read(wrapped) if read is not None else gradients_of(model))
        losses.append(total)
        chosen.step()
    if read_parameters is not None:
        return Steps(gradients, losses, read_parameters(wrapped))
    return Steps(gradients, losses, {n: p.detach().clone() for n, p in model.named_parameters()})
