"""A model that is built on the meta device, without memory, and gets it when it has been cut.

nn.Module.to_empty makes a parameter anew under each of its names: what is tied comes apart, and what techniques have
said of its pieces (placement.py) is lost. Here both stay. Hooks that add up gradients come back in the next forward
(partial_gradients.py); who registers other hooks on parameters does it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from dtcourse.parameters.placement import place, placement_of
from dtcourse.torch_private import own_buffers, own_parameters


def is_on_meta(module: nn.Module) -> bool:
    """Whether some parameter has a shape and no values yet."""
    return any(parameter.is_meta for parameter in module.parameters())


def give_memory(
    model: nn.Module, device: torch.device | str, parts: Iterable[nn.Module] | None = None
) -> None:
    """Parameters and buffers on the meta device get memory, with whatever values are in it: a state is to be loaded.

    parts: only those of these modules; default: all. The model's other modules that share one of them get the same
    """
    wanted = [part for one in (parts or [model]) for part in one.modules()]
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in wanted:
        for parameter in own_parameters(module).values():
            if parameter is not None and parameter.is_meta and parameter not in made:
                made[parameter] = with_memory(parameter, device)
        give_buffers_memory(module, device)
    for module in model.modules():
        for name, parameter in own_parameters(module).items():
            if parameter in made:
                own_parameters(module)[name] = made[parameter]


def with_memory(parameter: nn.Parameter, device: torch.device | str) -> nn.Parameter:
    """The same one with memory: frozen where it was, its pieces where they were said to be."""
    made = nn.Parameter(torch.empty_like(parameter, device=device), parameter.requires_grad)
    place(made, placement_of(parameter))
    return made


def give_buffers_memory(module: nn.Module, device: torch.device | str) -> None:
    """A module's own buffers that are on the meta device get memory, with whatever values are in it."""
    for name, buffer in own_buffers(module).items():
        if buffer is not None and buffer.is_meta:
            own_buffers(module)[name] = torch.empty_like(buffer, device=device)
