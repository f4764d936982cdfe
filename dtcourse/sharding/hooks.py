"""Where in a step a sharded module is: hooks around its forward, and on the gradients of its results, parameters and inputs.

forward of the module    _before_forward  gather           _after_forward  free
backward, from its end   _outputs_gradient_came  gather    _gradient_is_ready  reduce and free    _inputs_are_ready
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from dtcourse.sharding.schedule import Schedule
from dtcourse.sharding.unit import Unit


def hook_up(module: nn.Module, unit: Unit) -> None:
    """Sets all hooks of a new unit."""
    for flat in unit.flats:
        if flat.trains:
            flat.on_gradient(partial(_gradient_is_ready, unit))
    module.register_forward_pre_hook(partial(_before_forward, unit), prepend=True, with_kwargs=True)
    module.register_forward_hook(partial(_after_forward, unit), always_call=True)


def _schedule_of(module: nn.Module) -> Schedule:
    """One schedule for all units inside the module that is called first, which is the root."""
    units: list[Any] = [m._fsdp for m in module.modules() if hasattr(m, "_fsdp")]
    schedule = Schedule(module, units)
    for unit in units:
        unit.schedule = schedule
    return schedule


def _before_forward(unit: Unit, module: nn.Module, args: Any, keywords: Any) -> tuple[Any, Any]:
    """Gathers, and casts floating-point inputs to the dtype of computation."""
    unit.schedule = unit.schedule or _schedule_of(module)
    unit.schedule.enter(unit)
    dtype = unit.mp_policy.param_dtype
    if dtype is not None and unit.mp_policy.cast_forward_inputs:
        args, keywords = tree_map(partial(_cast, dtype), (args, keywords))
    if torch.is_grad_enabled() and not unit.in_backward:
        unit.calls += 1  # where no input has a gradient, backward never tells that it is through: better late than early
        inputs = [t for t in tree_leaves((args, keywords)) if _has_backward(t)]
        if inputs:
            torch.autograd.graph.register_multi_grad_hook(inputs, partial(_inputs_are_ready, unit))
    return args, keywords


def _after_forward(unit: Unit, module: nn.Module, args: Any, output: Any) -> Any:
    """Frees, and sees to it that backward begins by gathering again. Runs after a failed forward too."""
    if unit.mp_policy.output_dtype is not None:
        output = tree_map(partial(_cast, unit.mp_policy.output_dtype), output)
    results = [t for t in tree_leaves(output) if _has_backward(t)]
    if results and torch.is_grad_enabled() and not unit.in_backward:
        hook = partial(_outputs_gradient_came, unit)
        torch.autograd.graph.register_multi_grad_hook(results, hook, mode="any")
    unit.schedule.leave(unit, backward_will_come=bool(results))
    return output


def _outputs_gradient_came(unit: Unit, gradient: torch.Tensor) -> None:
    unit.schedule.before_backward(unit)


def _gradient_is_ready(unit: Unit) -> None:
    unit.schedule.gradient_is_ready(unit)


def _inputs_are_ready(unit: Unit, gradients: Any) -> None:
    """Backward has passed one forward of this unit; after the last of them nothing in it is needed any more."""
    unit.calls -= 1
    if unit.calls == 0 and unit.in_backward:
        unit.schedule.inputs_are_ready(unit)


def _cast(dtype: torch.dtype, value: Any) -> Any:
    floating = isinstance(value, torch.Tensor) and value.dtype.is_floating_point
    return value.to(dtype) if floating else value


def _has_backward(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
