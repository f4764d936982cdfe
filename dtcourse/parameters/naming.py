"""A model's parameters and buffers by the names that the whole model has for them.

Techniques put modules between: `experts.mine.up` is the plain model's `experts.up`. Such a module says what becomes of
a child's name, by an attribute that a walk reads:

    module.names_in_whole = {"mine": ""}     # the child `mine` has no name of its own in the whole model

A parameter may be gathered at the moment: what a technique keeps of it then is the gathered one's attribute `kept`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from dtcourse.parameters.kept_placements import put_back
from dtcourse.parameters.placement import Placement, gradient_placement_of, placement_of
from dtcourse.torch_private import is_persistent, own_buffers, own_modules, own_parameters


class Entry(NamedTuple):
    """One parameter of the model."""

    names: list[str]
    """By which the whole model knows it: several where tied."""
    parameter: nn.Parameter
    """What this rank keeps of it."""
    placed: Placement
    """Where its pieces are."""

    @property
    def shape(self) -> torch.Size:
        """Of the whole."""
        return self.placed.shape


def entries(model: nn.Module) -> list[Entry]:
    """All parameters, tied ones once, in the order of the model's modules.

    Raises ValueError where a tied parameter of a model that was cut has come apart.
    """
    found: dict[int, Entry] = {}
    once: dict[int, tuple[str, nn.Parameter]] = {}  # by what a cut parameter was
    for prefix, module in modules_of(model):
        for name, held in own_parameters(module).items():
            if held is None:
                continue
            parameter = kept_of(held)
            was = put_back(module, name, parameter)
            first, same = once.setdefault(id(was), (joined(prefix, name), parameter))
            if was is not None and same is not parameter:
                raise ValueError(
                    f"{first} and {joined(prefix, name)} were one parameter, of which to_empty, or a conversion, has "
                    "made two: give a model on the meta device memory by dtcourse.parameters.on_meta.give_memory"
                    "(model, device), which keeps it one"
                )
            entry = found.setdefault(id(parameter), Entry([], parameter, placement_of(parameter)))
            entry.names.append(joined(prefix, name))
    return list(found.values())


def gradients_in(model: nn.Module) -> list[Entry]:
    """All parameters, each with where the pieces of its gradient are."""
    return [e._replace(placed=gradient_placement_of(e.parameter)) for e in entries(model)]


def kept_of(parameter: nn.Parameter) -> nn.Parameter:
    """What a technique keeps of a parameter, where the model holds it gathered just now."""
    kept: nn.Parameter = getattr(parameter, "kept", parameter)
    return kept


def modules_of(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """All modules with their names in the whole model; a shared one under each of its names."""
    yield prefix, model
    renamed: dict[str, str] = getattr(model, "names_in_whole", {})
    for name, child in own_modules(model).items():
        if child is not None:
            yield from modules_of(child, joined(prefix, renamed.get(name, name)))


def buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that a plain model's state_dict has."""
    return {
        joined(prefix, name): buffer
        for prefix, module in modules_of(model)
        for name, buffer in own_buffers(module).items()
        if buffer is not None and is_persistent(module, name)
    }


def with_extra_state(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that add more to their state_dict (get_extra_state), by the key that it has there."""
    return {
        joined(prefix, "_extra_state"): module
        for prefix, module in modules_of(model)
        if type(module).get_extra_state is not nn.Module.get_extra_state
    }


def names_in(model: nn.Module) -> set[str]:
    """The names of all that this rank has of the whole model's state."""
    names = {name for entry in entries(model) for name in entry.names}
    return names | buffers(model).keys() | with_extra_state(model).keys()


def plain_order(model: nn.Module) -> list[str]:
    """Names in the order of the plain model's state_dict."""
    return [
        joined(prefix, name)
        for prefix, module in modules_of(model)
        for name in [*own_parameters(module), *own_buffers(module), "_extra_state"]
    ]


def named_in_groups(groups: Iterable[dict[str, Any]]) -> list[tuple[str, torch.Tensor]]:
    """An optimizer's parameters by the names that they were passed with; where they had none, by their places."""
    named: list[tuple[str, torch.Tensor]] = []
    for number, group in enumerate(groups):
        places = [f"parameter {i} of group {number}" for i in range(len(group["params"]))]
        named += zip(group.get("param_names", places), group["params"], strict=True)
    return named


def joined(prefix: str, name: str) -> str:
    """The name of what a module of that name holds."""
    return f"{prefix}.{name}" if prefix and name else prefix or name
