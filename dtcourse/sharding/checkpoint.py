"""A sharded model and its optimizer on disk, each rank writing what it keeps, through torch.distributed.checkpoint.

    save("runs/10000", model, optimizer)         # on every rank
    load("runs/10000", model, optimizer)         # on any number of ranks, with other units, sharded by another layout

The folder is in PyTorch's own format (checkpoint/parts.py): PyTorch's fully_shard, and a plain model, load from it and
write it: `dcp.load({"model": plain.state_dict()}, checkpoint_id=folder)`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from dtcourse.checkpoint import parts
from dtcourse.sharding.state_dict import require_sharded


def save(
    folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Writes the model, and the optimizer's state, into a folder that all ranks share. Every rank must call it.

    A parameter that is in no unit is taken to be the same on all ranks: one of them writes it.
    """
    parts.save(folder, require_sharded(model), optimizer)


def load(
    folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Reads what `save` wrote, or PyTorch, on any number of ranks. Every rank must call it.

    Raises ValueError on all ranks, and leaves model and optimizer as they were, for a folder without a checkpoint, a
    damaged file, another model's names or shapes, and an optimizer with other parameter groups.
    """
    parts.load(folder, require_sharded(model), optimizer)
