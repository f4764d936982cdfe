"""An optimizer's step, taken one layer at a time and later, as if it had been taken whole and at once.

torch's optimizers go through param_groups and leave out what has no gradient. So a layer's step is the optimizer's own,
with the groups cut down to that layer for as long as it takes: its state stays in optimizer.state, where checkpoints
look for it. What counts is what the groups said when step() was called: a scheduler has changed lr since then.

That is right only where a parameter's step depends on nothing but its own gradient and state. An optimizer that clips
by the norm of all gradients, or counts its calls, would do something else without a word. So it is tried first, on two
small matrices: both at once against one after the other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from dtcourse.parameters.buckets import Bucket

# How it computes, not what: some of these want a GPU.
_IMPLEMENTATIONS = ("capturable", "differentiable", "foreach", "fused")


class LayerSteps:
    """The steps of `optimizer` that are due: {bucket: its groups, cut down}. names: {parameter: its name}.

    Raises ValueError for an optimizer that has not all of the parameters, or cannot step one layer at a time.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, names: Mapping[Any, str]) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(f"optimizer is one of torch.optim; got {type(optimizer).__name__}")
        has = {p for group in optimizer.param_groups for p in group["params"]}
        if missing := [name for p, name in names.items() if p not in has]:
            raise ValueError(
                f"the optimizer has not {', '.join(missing)}: its gradient would "
                "travel and no step be taken. Give it all parameters of the module that need one, or freeze them "
                "with requires_grad_(False)"
            )
        check_steps_apart(optimizer)
        self.optimizer, self.taking = optimizer, False
        self.due: dict[Bucket, list[dict[str, Any]]] = {}
        self._gradient: Callable[[Any], Tensor] = _none

    def note(
        self, buckets: Iterable[Bucket], skipped: set[Any], gradient: Callable[[Any], Tensor]
    ) -> None:
        """optimizer.step() was called: from here on each bucket has a step due, at the learning rates of this moment.

        skipped: parameters that take none;  gradient: where a parameter's will be
        """
        groups = [_settings(group) for group in self.optimizer.param_groups]
        place = {
            p: i for i, group in enumerate(self.optimizer.param_groups) for p in group["params"]
        }
        self._gradient = gradient
        for bucket in buckets:
            members: dict[int, list[Any]] = {}
            for parameter in bucket.parameters():
                if parameter not in skipped:
                    members.setdefault(place[parameter], []).append(parameter)
            self.due[bucket] = [{**groups[i], "params": ps} for i, ps in members.items()]

    def waiting(self) -> list[Bucket]:
        """Those whose step is still to be taken."""
        return list(self.due)

    def take(self, bucket: Bucket) -> None:
        """Takes a bucket's step, if it is due, with the gradients that have arrived in it."""
        groups = self.due.pop(bucket, [])
        parameters = [p for group in groups for p in group["params"]]
        if not parameters:
            return
        kept = [p.grad for p in parameters]
        for parameter in parameters:
            parameter.grad = self._gradient(parameter)
        self.taking = True
        try:
            with torch.inference_mode(False):  # its state is for later steps, whatever runs now
                step_of_groups(self.optimizer, groups)
        finally:
            self.taking = False
            for parameter, gradient in zip(parameters, kept, strict=True):
                parameter.grad = gradient


def step_of_groups(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    """The optimizer's own step, of these groups in place of its own."""
    whole = optimizer.param_groups
    optimizer.param_groups = groups
    try:
        type(optimizer).step(optimizer)  # the class's: schedulers count calls of the instance's
    finally:
        optimizer.param_groups = whole


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """A group's options as they are now, without its parameters. `lr` may be a tensor, which changes in place."""
    return {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in group.items()
        if name != "params"
    }


def _none(parameter: Any) -> Tensor:
    raise AssertionError("nothing is due")


# --- can it? ----------------------------------------------------------------------------------------------------


def check_steps_apart(optimizer: torch.optim.Optimizer) -> None:
    """Raises ValueError unless an optimizer of this class and settings steps two matrices as it steps each alone."""
    name = type(optimizer).__name__
    try:
        together, apart = (_three_steps(optimizer, each_alone) for each_alone in (False, True))
    except Exception as error:
        raise ValueError(
            f"{name} cannot be tried on two small matrices ({type(error).__name__}: {error}), so nobody knows "
            "whether it can step one layer at a time. It must be built from parameters and its own settings, and "
            "step without a closure"
        ) from error
    if not all(map(torch.equal, together, apart)):
        raise ValueError(
            f"{name} steps two parameters at once otherwise than one after the other: it needs all gradients "
            "together (a norm of all of them, a counter of calls). Use DistributedDataParallel, or an optimizer "
            "that goes by each parameter alone"
        )


def _three_steps(optimizer: torch.optim.Optimizer, each_alone: bool) -> list[Tensor]:
    """Two matrices after three steps of such an optimizer, with gradients that are large."""
    random = torch.Generator().manual_seed(0)
    shapes = (4, 3), (3, 5)
    weights = [
        torch.nn.Parameter(torch.randn(s, generator=random, dtype=torch.float64)) for s in shapes
    ]
    kind = type(optimizer)
    known = inspect.signature(kind).parameters
    options: dict[str, Any] = {
        name: value.detach().cpu().clone() if isinstance(value, Tensor) else value
        for name, value in optimizer.defaults.items()
        if name in known and name not in _IMPLEMENTATIONS
    }
    tried = kind(weights, **options)
    for _ in range(3):
        for weight in weights:
            weight.grad = 100 * torch.randn(weight.shape, generator=random, dtype=torch.float64)
        if not each_alone:
            tried.step()
            continue
        settings = _settings(tried.param_groups[0])
        for weight in reversed(weights):
            step_of_groups(tried, [{**settings, "params": [weight]}])
    return [weight.detach() for weight in weights]
