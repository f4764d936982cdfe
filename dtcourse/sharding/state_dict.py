"""The state of a sharded model as whole tensors by name, the same as the plain model's, and from it.

    whole = full_state_dict(model)               # on every rank, or on the first only; loads into the plain model
    load_full_state_dict(model, whole)           # from a plain model, from another number of ranks: all the same

Whole tensors are gathered one flat, or one DTensor, at a time (parameters/whole.py); where tensor or expert parallelism
had cut the model before, its slices are put together too. For models that no single rank can hold, see checkpoint.py.
"""

from __future__ import annotations

import torch
from torch import nn

from dtcourse.parameters import whole
from dtcourse.sharding.unit import units_in

State = dict[str, torch.Tensor]


def full_state_dict(model: nn.Module, only_first: bool = False) -> State:
    """All parameters and buffers whole, by the plain model's names, on the CPU. Every rank must call it.

    only_first: the first rank alone gets them, the others an empty dict

    What is in no unit is each rank's own: fully_shard keeps neither its values nor its gradients alike.
    """
    return whole.full_state_dict(require_sharded(model), only_first, on_cpu=True)


def full_gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    """All gradients whole, by name, None where there is none; a tied parameter once. Every rank must call it."""
    return whole.full_gradients(require_sharded(model), on_cpu=True)


def load_full_state_dict(model: nn.Module, state: State) -> None:
    """Takes this rank's part of each whole tensor, and all of what is in no unit. Every rank passes the same state.

    Raises ValueError on all ranks, before anything is changed, for names that are missing or unexpected, shapes that
    differ, and tied parameters with two values.
    """
    whole.load_full_state_dict(require_sharded(model), state)


def require_sharded(model: nn.Module) -> nn.Module:
    """The model. Raises ValueError where no module in it is sharded."""
    if not units_in(model):
        raise ValueError(f"{type(model).__name__} is not sharded: apply fully_shard to it first")
    return model
