"""An optimizer's states by number, of which each rank keeps those of its own parameters: ZeRO-1's state dict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


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
            if isinstance(value, torch.Tensor) and not _fits(value.shape, parameter.shape):
                raise ValueError(
                    f"{name} of parameter {number} is {list(value.shape)} in the state dict, and the parameter "
                    f"{list(parameter.shape)}: it is another model's"
                )
        found[number] = parameter, state
    return found


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
