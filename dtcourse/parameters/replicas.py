"""What ranks that hold the same model do with it: compare it, start it alike, average its gradients.

After they have started from the same weights, replicas stay the same because each takes the same step: the mean of all
ranks' gradients. The mean over ranks of the mean over each rank's equal share is the mean over the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.parameters.slices import require_same

Group = dist.ProcessGroup | None


def broadcast_model(
    model: nn.Module, source: int = 0, group: Group = None, buffers: bool = True
) -> None:
    """Gives every rank the parameters and, unless told not to, the buffers of `source` (a rank of the group).

    Raises ValueError on every rank, before anything is sent, if the ranks built different models.
    """
    check_same_model(model, group, buffers)
    broadcast_tensors((t for _, t in named_tensors(model, buffers)), source, group)


def broadcast_tensors(
    tensors: Iterable[torch.Tensor], source: int = 0, group: Group = None
) -> None:
    """Gives every rank the values of `source`, a rank of the group, one message a tensor."""
    with torch.no_grad():
        for tensor in tensors:
            dist.broadcast(tensor, group=group, group_src=source)


def named_tensors(model: nn.Module, buffers: bool = True) -> list[tuple[str, torch.Tensor]]:
    """The model's parameters, and its buffers, by name: in the same order on every rank."""
    return [*model.named_parameters(), *(model.named_buffers() if buffers else ())]


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


# --- the same on all ranks? ------------------------------------------------------------------------------------


def check_same_model(model: nn.Module, group: Group = None, buffers: bool = True) -> None:
    """Raises ValueError, naming ranks and shapes, unless every rank's model has the same parameters and buffers.

    Slices that differ from rank to rank are not the same either.
    """
    if any(nn.parameter.is_lazy(p) for p in model.parameters()):
        raise ValueError(
            "lazy layers have no shapes yet: run the module's forward once on every rank, then go on"
        )
    require_same(model.named_parameters(), group, "one model on all ranks")
    check_same_on_all_ranks(
        named_tensors(model, buffers), group, "built different models", "only the data differs"
    )


def check_same_on_all_ranks(
    named: Sequence[tuple[str, torch.Tensor]], group: Group, what: str, besides: str = ""
) -> None:
    """Raises ValueError on every rank unless all have the same tensors: names, shapes, dtypes and what is frozen.

    what:    what the ranks have done where they have not ("built different models");  besides: the advice's end
    """
    mine = [(name, tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in named]
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    first = everyone[0]
    for rank, theirs in enumerate(everyone):
        if theirs == first:
            continue
        pairs = [pair for pair in zip(first, theirs, strict=False) if pair[0] != pair[1]]
        a, b = map(_words, pairs[0]) if pairs else (f"{len(first)} tensors", f"{len(theirs)}")
        raise ValueError(
            f"the ranks {what}: rank 0 has {a}, rank {rank} has {b}. Build the same model on every rank"
            f"{'; ' + besides if besides else ''}."
        )


def _words(tensor: tuple[str, tuple[int, ...], str, bool]) -> str:
    name, shape, dtype, trains = tensor
    return f"{name} {list(shape)} {dtype.removeprefix('torch.')}{'' if trains else ' (frozen)'}"
