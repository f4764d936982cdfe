"""A step that runs out of memory is taken all the same, with smaller micro-batches.

    step = train_step_with_halving(model, loss_function, optimizer, inputs, targets, micro_batch=64, group=group)

Activations grow with the micro-batch, everything else does not. A batch cut into micro-batches gives the same
gradient, if each part's mean loss counts by its share of the samples. So a step that runs out of memory is begun
again from nothing, with micro-batches half as large, until it fits or one sample is too much.

Over ranks: all must take the same way, or some wait in a collective for a rank that is not coming. A rank whose memory
ends in the middle of a backward with overlap has sent some buckets and will never send the others, and nobody can call
back what was sent. So no attempt sends anything. After each, the ranks agree on the largest micro-batch that everyone
may try next (one all-reduce of 8 bytes); once all have succeeded with the same one, gradients are averaged, in one
message per parameter. What that costs is the overlap of gradients with backward. The parts are gradient accumulation
(as in Huang et al., GPipe, arXiv 1811.06965).

What cannot be rescued so: one sample that is too much; a model whose forward sends (sharded parameters, tensor
parallelism, a pipeline), as the others wait in it: refused; and memory that the optimizer's first step runs out of.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse import device, events
from dtcourse.memory.oom import is_out_of_memory
from dtcourse.parameters.agreement import smallest
from dtcourse.parameters.plain_replica import (
    has_communication_hook,
    require_own_gradients,
    require_whole_here,
)
from dtcourse.parameters.replicas import average_gradients
from dtcourse.plural import plural


@dataclass(frozen=True)
class HalvedStep:
    """What a step came to.

    loss:        mean over this rank's samples
    micro_batch: what it fitted with; pass it on to the next step
    attempts:    1 where nothing ran out of memory
    """

    loss: float
    micro_batch: int
    attempts: int


def train_step_with_halving(
    model: nn.Module,
    loss_function: Callable[[Any, torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    *,
    micro_batch: int | None = None,
    group: dist.ProcessGroup | None = None,
    by_samples: bool = False,
) -> HalvedStep:
    """One training step on this rank's samples that halves the micro-batch until it fits.

    model:           plain, or wrapped in DDP or ZeRO-2's ShardedDataParallel: its own averaging is left out (no_sync),
                     averages are taken here
    loss_function:   (output, targets) -> mean over the samples
    inputs, targets: samples first, the same number
    micro_batch:     samples of the first attempt; None: all of them
    group:           ranks whose gradients are averaged, each rank's mean with the same weight, as DDP has it
    by_samples:      each rank's with the weight of its samples: what one process has on all of them, also where ranks
                     have different numbers. 8 bytes more

    Gradients are set, not added to. Batch statistics and random state are put back before another attempt; with batch
    normalisation or dropout, other micro-batches give other (as good) gradients. Raises torch.OutOfMemoryError on every
    rank if one sample is too much on one of them; then nothing has been updated. ValueError for parameters that are cut
    over ranks, as their forward sends, for a wrapper inside or round the model, and for one with a communication hook,
    which would not be called.
    """
    samples = len(inputs)
    size = samples if micro_batch is None else min(micro_batch, samples)
    if len(targets) != samples or size < 1:
        raise ValueError(
            "inputs and targets are the same samples, at least one, in micro-batches of at least one; got "
            f"{plural(samples, 'input')}, {plural(len(targets), 'target')}, micro_batch={micro_batch}"
        )
    _check(model)
    # a data-parallel wrapper's, so that attempts send nothing
    local: Any = getattr(model, "no_sync", None)
    if local is not None and group is None:
        group = getattr(model, "process_group", None)
    before = device.random_state(), [b.detach().clone() for b in model.buffers()]
    attempts, again = 0, True
    while True:
        if again:
            for parameter in model.parameters():
                parameter.grad = None
            with nullcontext() if local is None else local():
                loss, failure = _attempt(model, loss_function, inputs, targets, size)
            attempts += 1
        # Also a rank that has succeeded asks again, until all have.
        limit = _NO_LIMIT if failure is None else size // 2
        if group is not None:
            limit = smallest(limit, group, device.current())
        if limit == _NO_LIMIT:
            break
        again = limit < size
        if again:
            # Here, not where the error was caught: the error holds the frames, and the frames hold the tensors.
            _clean_up(model, *before)
        if limit == 0:
            whose = failure or "another rank of the group ran out of memory"
            raise torch.OutOfMemoryError(f"one sample at a time is still too much: {whose}")
        size = min(size, limit)
    if group is not None:
        if by_samples:
            _weigh(model, samples, group)
        average_gradients(model, group)
    optimizer.step()
    return HalvedStep(loss, size, attempts)


def _check(model: nn.Module) -> None:
    who = "train_step_with_halving"
    require_whole_here(
        model,
        who,
        "Its forward waits for other ranks, and a rank that runs out of memory in it cannot be waited for: take a "
        "smaller micro-batch on all ranks, and start again from a checkpoint",
    )
    require_own_gradients(
        model,
        who,
        "Pass the wrapper itself, whose averaging is left out, or let go of it (del wrapper)",
        model,
    )
    if has_communication_hook(model):
        raise ValueError(
            f"{who} averages gradients itself, whole, so the communication hook of this wrapper would not be called, "
            "and a compression would send everything without a word. Leave one of the two out: pass the wrapped "
            "module, and let go of the wrapper (del wrapper)"
        )


def _weigh(model: nn.Module, samples: int, group: dist.ProcessGroup) -> None:
    """A plain mean over the ranks is then the mean over all samples."""
    total = torch.tensor(samples, device=device.current())
    dist.all_reduce(total, group=group)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad *= samples * dist.get_world_size(group) / total.item()


_NO_LIMIT = 2**62  # what a rank says that needs no smaller micro-batch


def _attempt(
    model: nn.Module,
    loss_function: Callable[..., torch.Tensor],
    inputs: torch.Tensor,
    targets: torch.Tensor,
    size: int,
) -> tuple[float, str | None]:
    """Forward and backward of all micro-batches: the mean loss, or the text of an out-of-memory error."""
    try:
        total = torch.zeros((), device=inputs.device)
        for x, y in zip(inputs.split(size), targets.split(size), strict=True):
            # Its share, not 1 / micro-batches: the last one may be smaller.
            loss = loss_function(model(x), y) * (len(x) / len(inputs))
            loss.backward()
            total += loss.detach()
        return total.item(), None
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        events.instant("out of memory", "memory", detail={"micro_batch": size})
        return float("nan"), str(error)


def _clean_up(model: nn.Module, random_state: Any, buffers: list[torch.Tensor]) -> None:
    """As before the attempt, with everything it held given back."""
    for parameter in model.parameters():
        parameter.grad = None
    with torch.no_grad():
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)
    device.set_random_state(random_state)
    gc.collect()  # what only a reference cycle holds
    device.empty_cache()
