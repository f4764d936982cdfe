"""What becomes of a unit whose parameters have changed since they were cut: converted, given memory, frozen, unfrozen.

    model.to(torch.bfloat16)          model.to_empty(device="cpu")          model.embedding.requires_grad_(False)

Parameters stay the objects that they are, so optimizers keep them. What this rank keeps of them is laid out anew when
the unit is gathered for the next forward: by their dtypes now, and by which of them are trained now, since what is not
has no place among the gradients. Ranks must have changed alike, and ask each other: two small collectives a change, and
none where nothing has changed.

Parts of a flat parameter hold elements of several parameters, so FullyShardedDataParallel refuses all of this.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dtcourse.parameters.agreement import raise_on_all_ranks
from dtcourse.parameters.same_model import check_same
from dtcourse.sharding.gathered_parameters import GatheredParameters, Named
from dtcourse.torch_private import in_backward


def has_changed(unit: Any) -> bool:
    """Whether one of the unit's parameters is no longer what its part was made of."""
    return any(group.has_changed() for group in unit.param_groups)


def lay_out_again(unit: Any) -> None:
    """Makes the unit of what its parameters are now. Where only memory is another one, this rank's copy does.

    Raises RuntimeError in a backward, for parameters that are on the meta device, and where gradients wait to be sent;
    ValueError on all ranks where they have changed differently.
    """
    named = _named(unit)
    _check_time(unit)
    if not any(group.is_of_another_kind() for group in unit.param_groups):
        with torch.no_grad():
            for group in unit.param_groups:
                group.adopt(torch.zeros_like(group.shard), group.sharded)
        return
    _check_memory(unit, named)
    groups = [g for g in (unit.shard_groups.shard, unit.shard_groups.replicate) if g is not None]
    for group in groups:
        raise_on_all_ranks(lambda: _check_sent(unit), group)
        check_same(
            [(name, parameter) for name, parameter, _ in named],
            group,
            f"have changed different parameters of {unit.name} since it was sharded",
            "convert, freeze and unfreeze the same ones",
        )
    for group in unit.param_groups:
        group.mark()  # a conversion of a module inside puts other tensors into the objects
    by_name = {name: parameter for name, parameter, _ in named}
    with torch.no_grad():
        renewed = unit.grouped(named)
        for group in renewed:
            parameters = [by_name[place.name] for place in group.places]
            _adopt(unit, group, parameters)
    unit.take(renewed)
    unit.set_name(unit.name)


def _named(unit: Any) -> list[Named]:
    return [
        (place.name, parameter, place.holders)
        for group in unit.param_groups
        for place, parameter in zip(group.places, group.sharded, strict=True)
    ]


def _adopt(unit: Any, group: GatheredParameters, parameters: list[nn.Parameter]) -> None:
    """Moves what this rank keeps of the parameters into one new part, and the parameters with it."""
    shard = torch.zeros(
        group.shard_numel,
        dtype=group.dtype,
        device="cpu" if unit.offloaded else unit.device,
        pin_memory=unit.pinned,
    )
    group.adopt(shard, parameters)


def _check_time(unit: Any) -> None:
    if in_backward():
        raise RuntimeError(
            f"the parameters of {unit.name} have been converted, frozen or unfrozen between its forward and this "
            "backward: gradients would be of neither model. Call backward first."
        )


def _check_memory(unit: Any, named: list[Named]) -> None:
    on_meta = [name for name, parameter, _ in named if parameter.is_meta]
    if on_meta:
        raise RuntimeError(
            "FSDP parameters should be materialized from meta device before training, but the following were still on "
            f"meta device: {on_meta}. Call model.to_empty(device=...), which gives them memory, and then give them "
            "values, by reset_parameters of each module or by loading a state."
        )
    expected = torch.device("cpu") if unit.offloaded else unit.device
    for name, parameter, _ in named:
        if parameter.device.type != expected.type:
            raise ValueError(
                f"{name} of {unit.name} was moved after it was sharded: it is on {parameter.device}, and its part "
                f"belongs on {expected}. Move the model back, or move it first and shard it then."
            )


def _check_sent(unit: Any) -> None:
    if any(group.gradients is not None for group in unit.param_groups):
        raise ValueError(
            f"gradients of {unit.name} wait to be sent (set_requires_gradient_sync(False)), and its parameters have "
            "been converted, frozen or unfrozen: run a backward that sends them first"
        )
