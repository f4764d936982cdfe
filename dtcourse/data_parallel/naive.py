"""Data parallelism in two functions: start from the same weights, average the gradients after each backward.

The mean over ranks of the mean over each rank's equal share is the mean over the whole batch, so with plain SGD every
step is the step that one process would take on all the data. Nothing is hidden and nothing is fast: the network idles
during backward, the processor during the all-reduces, and every small parameter pays a message's latency.

Bytes a rank sends in a step: 2 (p - 1) / p of the gradients' bytes, in at least 2 (p - 1) messages a parameter (ring).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

Group = dist.ProcessGroup | None


def broadcast_model(model: nn.Module, source: int = 0, group: Group = None) -> None:
    """Gives every rank the parameters and buffers of `source` (a rank of the group).

    Raises ValueError on every rank, before anything is sent, if the ranks built different models.
    """
    check_same_model(model, group)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor, group=group, group_src=source)


def average_gradients(model: nn.Module, group: Group = None) -> None:
    """Replaces each gradient by its mean over the ranks. Call it between backward and the optimizer's step.

    A parameter without a gradient on this rank counts as zero, since another rank may have one; every rank must
    all-reduce the same parameters in the same order, or they wait for each other for ever.
    """
    size = dist.get_world_size(group)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= size


def check_same_model(model: nn.Module, group: Group = None) -> None:
    """Raises ValueError, naming ranks and shapes, unless every rank's model has the same parameters and buffers."""
    mine = [
        (name, tuple(t.shape), str(t.dtype), t.requires_grad)
        for name, t in [*model.named_parameters(), *model.named_buffers()]
    ]
    everyone: list[list[tuple[str, tuple[int, ...], str, bool]]] = [
        [] for _ in range(dist.get_world_size(group))
    ]
    dist.all_gather_object(everyone, mine, group=group)
    for rank, theirs in enumerate(everyone):
        if theirs == everyone[0]:
            continue
        for ours, other in zip(everyone[0], theirs, strict=False):
            if ours != other:
                raise ValueError(
                    f"the ranks built different models: rank 0 has {_words(ours)}, rank {rank} has {_words(other)}. "
                    "Build the same model on every rank; only the data differs."
                )
        raise ValueError(
            f"the ranks built different models: rank 0 has {len(everyone[0])} parameters and buffers, "
            f"rank {rank} has {len(theirs)}. Build the same model on every rank; only the data differs."
        )


def _words(tensor: tuple[str, tuple[int, ...], str, bool]) -> str:
    name, shape, dtype, trains = tensor
    return f"{name} {list(shape)} {dtype.removeprefix('torch.')}{'' if trains else ' (frozen)'}"
