"""Where the pieces of a module's parameters are, kept by the module: for parameters that others make anew.

A placement rides on its parameter (placement.py). nn.Module.to_empty, conversions under
torch.__future__.set_overwrite_module_params_on_conversion and PyTorch's own fully_shard put another parameter in its
place, which knows nothing. So who cuts a model calls `keep` at the end, and each walk over the model (naming.py), and
full sharding before it cuts a parameter further, calls `put_back`.
"""

from __future__ import annotations

import torch
from torch import nn

from dtcourse.parameters.placement import Placement, place, placement_of
from dtcourse.torch_private import own_parameters


def keep(model: nn.Module) -> None:
    """Each module keeps where the pieces of its own parameters are now."""
    for module in model.modules():
        kept = {
            name: (parameter.placed, parameter.shape)
            for name, parameter in own_parameters(module).items()
            if parameter is not None and hasattr(parameter, "placed")
        }
        if kept:
            module.placements_kept = kept  # type: ignore[assignment]


def put_back(module: nn.Module, name: str, parameter: torch.Tensor) -> Placement | None:
    """A parameter that was made anew is placed as the one that it replaces; returns that placement, as it was kept.

    Raises ValueError where it has another shape.
    """
    kept: dict[str, tuple[Placement, torch.Size]] = getattr(module, "placements_kept", {})
    if name not in kept:
        return None
    placed, shape = kept[name]
    if hasattr(parameter, "placed"):
        return placed
    if parameter.shape != shape:
        raise ValueError(
            f"{name} was cut, {placed}, and has been replaced by a parameter of shape {list(parameter.shape)} for "
            f"{list(shape)}: where its pieces are is unknown. Cut the model again"
        )
    # PyTorch's fully_shard says where it has put the pieces of this piece.
    place(parameter, placed, *placement_of(parameter).cuts)
    return placed
