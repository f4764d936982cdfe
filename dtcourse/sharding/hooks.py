"""Where in a step a sharded module is: hooks around its forward, and on the gradients of its
results, parameters and inputs.

forward of the module    _before_forward  gather           _after_forward  free
backward, from its end   _outputs_gradient_came  gather    _gradient_is_ready  reduce and free    _inputs_are_ready
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, ValuesView
from functools import partial
from typing import Any

import torch
from torch import nn

from dtcourse import nested
from dtcourse.sharding.schedule import Schedule
from dtcourse.sharding.unit import Unit, units_in
from dtcourse.torch_private import base_of, in_backward

# A tensor that a module holds, and the node of the graph that it comes from.
HeldTensor = tuple[torch.Tensor, Any]


class Hooks:
    """The hooks of one unit.

    module: the unit's, which is called;  own_modules: it and the modules inside that are in no inner unit

    The schedule is that of the module that is called first, which is the root: its call tells all units inside.
    """

    def __init__(self, module: nn.Module, unit: Unit, own_modules: Iterable[nn.Module]) -> None:
        module._fsdp_hooks = self  # type: ignore[assignment]
        self.module, self.unit, self.own_modules = module, unit, own_modules
        self._schedule: Schedule | None = None
        # By the forwards that are running: a module may call itself.
        self._held_before: list[list[HeldTensor]] = []
        unit.on_gradient(self._gradient_is_ready)
        module.register_forward_pre_hook(self._before_forward, prepend=True, with_kwargs=True)
        module.register_forward_hook(self._after_forward, always_call=True)

    @property
    def schedule(self) -> Schedule:
        """The schedule of the model; made where there is none: in the first call, or by hand after unshard()."""
        if self._schedule is None:
            schedule = Schedule(self.module, units_in(self.module))
            for unit in schedule.units:
                vars(unit.module)["_fsdp_hooks"].use_schedule(schedule)
        assert self._schedule is not None, "its own unit is among them"
        return self._schedule

    def use_schedule(self, schedule: Schedule) -> None:
        """The unit is one of this schedule's from now on."""
        self._schedule = schedule

    def run(self, method: Callable[..., Any], args: Any, keywords: Any) -> Any:
        """Calls a method of the module as if it were its forward; inside one that runs, as it is."""
        if self._schedule is not None and self._schedule.is_running(self.unit):
            return method(*args, **keywords)
        args, keywords = self._before_forward(self.module, args, keywords)
        try:
            output = method(*args, **keywords)
        except BaseException:
            self._after_forward(self.module, args, None)
            raise
        return self._after_forward(self.module, args, output)

    def _before_forward(self, module: nn.Module, args: Any, keywords: Any) -> tuple[Any, Any]:
        """Gathers, and casts floating-point inputs to the dtype of computation."""
        unit = self.unit
        self._held_before.append(_tensors_held_by(self.own_modules))
        self.schedule.pre_forward(unit)
        dtype = unit.mp_policy.param_dtype
        if dtype is not None and unit.mp_policy.cast_forward_inputs:
            args, keywords = nested.map_tensors(partial(_cast, dtype), (args, keywords))
        if torch.is_grad_enabled() and not self.schedule.in_backward(unit):
            inputs = [t for t in nested.tensors((args, keywords)) if t.requires_grad]
            # torch cannot wait for a leaf's gradient inside autograd.grad, which may be asked for just that; a
            # reentrant checkpoint computes again from leaves, and asks for all.
            tells_its_end = bool(inputs) and (in_backward() or not any(t.is_leaf for t in inputs))
            self.schedule.expect_backward(unit, tells_its_end)
            if tells_its_end:
                _when_all_have_gradients(inputs, self._inputs_are_ready)
        return args, keywords

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Frees, and sees to it that backward begins by gathering again. Runs after a failed forward too."""
        unit = self.unit
        if unit.mp_policy.output_dtype is not None:
            output = nested.map_tensors(partial(_cast, unit.mp_policy.output_dtype), output)
        closed: list[Any] = []
        results = [t for t in nested.tensors(output, closed) if t.grad_fn is not None]
        # another hook may have failed before ours
        before = self._held_before.pop() if self._held_before else []
        results += [
            t
            for t, node in _tensors_held_by(self.own_modules)
            if all(node is not earlier for _, earlier in before)
        ]
        if results and torch.is_grad_enabled() and not self.schedule.in_backward(unit):
            # A view that is changed in place gets another history, without its hook; that of its base goes on.
            bases = [b for b in map(base_of, results) if b is not None and b.grad_fn is not None]
            ancestors = self.schedule.running_ancestors(unit)
            hook = partial(self._outputs_gradient_came, ancestors, unit.gathered_versions)
            torch.autograd.graph.register_multi_grad_hook([*results, *bases], hook, mode="any")
        self.schedule.post_forward(unit, backward_will_come=bool(results), unseen=bool(closed))
        return output

    def _outputs_gradient_came(
        self, ancestors: list[Unit], of_forward: list[int], gradient: torch.Tensor
    ) -> None:
        """ancestors: units whose forward ran around it, from outside in; of_forward:
        the versions of its shards then.
        """
        name = self.unit.name
        if torch.is_grad_enabled():
            raise ValueError(
                f"create_graph=True: a second backward through {name} would need its parameters after they are freed. "
                "Sharded modules compute first derivatives only; leave create_graph out, or keep this module unsharded."
            )
        self.schedule.backward_reaches(self.unit, ancestors)
        self.schedule.pre_backward(self.unit)
        kept = not self.unit.gathered_in_backward  # else it has been looked at when it was gathered
        if self.unit.gathered_versions != of_forward or (kept and self.unit.has_changed()):
            raise RuntimeError(
                f"the parameters of {name} have been changed between its forward and this backward (an optimizer's "
                "step, a loaded state, freezing): gradients would be of neither model. Call backward first."
            )

    def _gradient_is_ready(self, _view: torch.Tensor) -> None:
        self.schedule.gradient_is_ready(self.unit)

    def _inputs_are_ready(self, gradients: Any) -> None:
        self.schedule.inputs_are_ready(self.unit)


def _tensors_held_by(modules: Iterable[nn.Module]) -> list[HeldTensor]:
    """Tensors with a history that are attributes of modules, or lie in one: forward may leave results there.

    A mixture of experts keeps its balance loss so, for the training loop to collect.
    """
    if not torch.is_grad_enabled():
        return []
    found: list[HeldTensor] = []
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, dict):
                value = value.values()
            for item in value if isinstance(value, list | tuple | ValuesView) else (value,):
                if isinstance(item, torch.Tensor) and item.grad_fn is not None:
                    found.append((item, item.grad_fn))
    return found


def _when_all_have_gradients(inputs: list[torch.Tensor], hook: Callable[[Any], None]) -> None:
    # PyTorch's hook for several knows the node it is on: a graph with it waits for the collector.
    if len(inputs) == 1:
        inputs[0].register_hook(hook)
    else:
        torch.autograd.graph.register_multi_grad_hook(inputs, hook)


def _cast(dtype: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(dtype) if tensor.dtype.is_floating_point else tensor
