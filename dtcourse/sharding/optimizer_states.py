"""An optimizer's states by number, of which each rank keeps those of its own parameters: ZeRO-1's state dict.

Where tensor or expert parallelism has cut a parameter, its state is cut as well. A state dict has both whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from dtcourse import nested
from dtcourse.parameters.naming import Entry
from dtcourse.parameters.placement import local, placement_of
from dtcourse.parameters.whole import gathered


def states_of(
    state_dict: Mapping[str, Any], parameters: Sequence[torch.Tensor]
) -> dict[int, tuple[torch.Tensor, Any]]:
    """By the number that the state dict gives each parameter: the parameter and its state, which may be empty.

    Raises ValueError where the state dict is another model's.
    """
    numbers = [n for group in state_dict["param_groups"] for n in group["params"]]
    if len(numbers) != len(parameters):
        raise ValueError(
            f"the state dict is of {len(numbers)} parameters, this optimizer has {len(parameters)}: is it of "
            "another model, or a single rank's?"
        )
    found = {}
    for number, parameter in zip(numbers, parameters, strict=True):
        state = state_dict["state"].get(number, {})
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and not _fits(
                value.shape, whole := shape_of(parameter)
            ):
                raise ValueError(
                    f"{name} of parameter {number} is {list(value.shape)} in the state dict, and the parameter "
                    f"{list(whole)}: it is another model's"
                )
        found[number] = parameter, state
    return found


def shape_of(parameter: torch.Tensor) -> torch.Size:
    """Of the whole parameter, where this rank has a slice."""
    return placement_of(parameter).shape


def whole_states(
    states: Mapping[int, Any], parameters: Sequence[torch.Tensor]
) -> dict[int, dict[str, Any]]:
    """States by number, each slot in the whole parameter's shape. A collective over the axes on which they are cut.

    Raises ValueError for a slot that is no slice of the parameter's: an average over its rows, say.
    """
    return {
        number: {
            name: _whole(value, name, number, parameters[number])
            for name, value in states[number].items()
        }
        for number in sorted(states)
    }


def _whole(value: Any, name: str, number: int, parameter: torch.Tensor) -> Any:
    placed = placement_of(parameter)
    if not placed.over or not any(tensor.dim() for tensor in nested.tensors(value)):
        return value
    if not isinstance(value, torch.Tensor):
        raise ValueError(
            f"{name} of parameter {number} is a {type(value).__name__} with tensors, of this rank's slice "
            f"{list(parameter.shape)}: a whole state has tensors alone, so keep each under a name of its own, or write "
            "a checkpoint (dtcourse.checkpoint), which has nests too"
        )
    if value.shape != local(parameter).shape:
        raise ValueError(
            f"{name} of parameter {number} has shape {list(value.shape)}, and this rank's slice of the parameter "
            f"{list(parameter.shape)}: what it is of the whole {list(placed.shape)} is unknown. Take an optimizer "
            "whose states are shaped as the parameter"
        )
    piece = value.to(local(parameter).device)
    ((_, whole),) = gathered([Entry([f"parameter {number}"], parameter, placed)], lambda _: piece)  # type: ignore[arg-type]
    assert whole is not None, "there is a piece"
    return whole.cpu()


def own_piece(state: Any, parameter: torch.Tensor) -> Any:
    """This rank's slice of each slot in a whole parameter's state."""
    placed = placement_of(parameter)
    if not placed.over:
        return state
    return {
        name: placed.cut(value)
        if isinstance(value, torch.Tensor) and value.shape == placed.shape
        else value
        for name, value in state.items()
    }


def parameters_of(groups: Iterable[Mapping[str, Any]]) -> list[torch.Tensor]:
    """All of an optimizer's groups, in their order."""
    return [parameter for group in groups for parameter in group["params"]]


def built_with(groups: Iterable[Mapping[str, Any]]) -> list[tuple[torch.dtype, torch.device]]:
    """Each parameter's dtype and device."""
    return [(parameter.dtype, parameter.device) for parameter in parameters_of(groups)]


def check_as_built(before: Sequence[tuple[Any, Any]], groups: Iterable[Mapping[str, Any]]) -> None:
    """Raises ValueError where a parameter has another dtype or device than when its optimizer was built."""
    for number, (was, is_now) in enumerate(zip(before, built_with(groups), strict=True)):
        if was != is_now:
            raise ValueError(
                f"parameter {number} was {was[0]} on {was[1]} when the optimizer was built, and is "
                f"{is_now[0]} on {is_now[1]}: move or convert the model first, then build the optimizer"
            )


def copy_options(source: Iterable[dict[str, Any]], target: Iterable[dict[str, Any]]) -> None:
    """All of each group's options, and neither its parameters nor their names."""
    for ours, theirs in zip(source, target, strict=True):
        theirs.update((k, v) for k, v in ours.items() if k not in ("params", "param_names"))


def on_cpu(value: Any) -> Any:
    """A copy in host memory of all tensors in a state."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {k: on_cpu(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(on_cpu(v) for v in value)
    return value


def _fits(state: torch.Size, parameter: torch.Size) -> bool:
    """Whether a state can be one of a parameter: of its shape, one number, or one a row or a column (Adafactor)."""
    try:
        return torch.broadcast_shapes(state, parameter) == parameter
    except RuntimeError:
        return False
