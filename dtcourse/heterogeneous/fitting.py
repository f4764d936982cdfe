"""What a weight cannot make right: models and hooks for which the mean over samples is not the whole batch's."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn

from dtcourse.parameters.replicas import Group
from dtcourse.torch_private import BATCH_NORM


def takes_statistics(module: nn.Module) -> bool:
    """Whether it normalises with statistics of the batch that it is given."""
    return isinstance(module, BATCH_NORM) and (module.training or module.running_mean is None)


def refuse_own_statistics(model: nn.Module, group: Group = None) -> None:
    """Raises ValueError, naming it, for batch normalisation over other samples than those of all ranks of the group."""
    for name, module in model.named_modules():
        if not takes_statistics(module):
            continue
        if not hasattr(module, "group") and not hasattr(module, "process_group"):
            raise ValueError(
                f"{name or 'the model'} normalises with the statistics of this rank's samples, and no weight makes "
                "those of uneven shares the whole batch's: take data_parallel.SyncBatchNorm.convert(model), which "
                "counts samples, another normalisation (LayerNorm, GroupNorm), or its running statistics (.eval())"
            )
        over = _ranks_of(getattr(module, "group", getattr(module, "process_group", None)))
        if set(over) != set(_ranks_of(group)):
            raise ValueError(
                f"{name or 'the model'} takes its statistics over ranks {over}, and the batch is that of ranks "
                f"{_ranks_of(group)}: give SyncBatchNorm.convert the group of the wrapper"
            )


def refuse_auxiliary_losses(model: nn.Module) -> None:
    """Raises ValueError for a module that makes a loss of its own, as a gate does (pipeline_parallel/auxiliary.py)."""
    for name, module in model.named_modules():
        if hasattr(module, "auxiliary_loss"):
            raise ValueError(
                f"{name or 'the model'} makes a loss of its own that is no mean over samples (a gate's is a product of "
                "two means), so no weight makes it the whole batch's: take equal shares and DistributedDataParallel"
            )


def refuse_signs(state: Any) -> None:
    """Raises ValueError for a hook's state that keeps the gradients' signs alone."""
    if getattr(state, "signs_only", False):
        raise ValueError(
            f"{type(state).__name__} takes the signs of gradients, and a sign has no weight: a rank with one sample "
            "would count as much as one with sixty. Take a compressor that keeps sizes (TopK, PowerSGDState), or "
            "DistributedDataParallel with equal shares"
        )


def _ranks_of(group: Group) -> list[int]:
    return dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
