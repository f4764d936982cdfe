"""What does not move with a layer, and is refused before anything has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from dtcourse.parameters.partial_gradients import SumOverRanks
from dtcourse.parameters.placement import placement_of
from dtcourse.parameters.slices import require_whole
from dtcourse.pipeline_parallel.stages import tied_parameters
from dtcourse.plural import plural
from dtcourse.torch_private import gradient_hooks, hooks_on_gradient


def refuse_what_cannot_move(layers: Sequence[nn.Module]) -> None:
    """Raises ValueError for tensors that layers have in common or twice, for slices, and for hooks."""
    each = [range(i, i + 1) for i in range(len(layers))]
    if tied := tied_parameters(layers, each):
        names = " and ".join(dict.fromkeys(tied[0].in_whole.values()))
        raise ValueError(
            f"{names} are one parameter, which layers on two ranks would hold copies of: stages move where no two "
            "layers share weights. Untie them, or use Pipeline with cuts that stay (balance with speeds)"
        )
    for i, layer in enumerate(layers):
        places = Counter(
            id(one)
            for module in layer.modules()
            for named in (module.named_parameters, module.named_buffers)
            for _, one in named(recurse=False, remove_duplicate=False)
        )
        if places and max(places.values()) > 1:
            raise ValueError(
                f"layer {i} has one tensor in two places, and they would be two where it arrives: untie them, or "
                "use Pipeline with cuts that stay"
            )
    first: dict[int, int] = {}
    for i, layer in enumerate(layers):
        for one in layer.buffers():
            if first.setdefault(id(one), i) != i:
                raise ValueError(
                    f"layers {first[id(one)]} and {i} have a buffer in common, of which two ranks would hold "
                    "copies: give each its own, or use Pipeline with cuts that stay"
                )
    named = [(f"{i}.{n}", p) for i, layer in enumerate(layers) for n, p in layer.named_parameters()]
    why = "a slice of a layer does not move by itself"
    require_whole(named, "MovingStages", why, "Use Pipeline with cuts that stay")
    refuse_hooks(named)


def refuse_hooks(named: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raises ValueError for a parameter that more hangs on than can be sent."""
    for name, parameter in named:
        # Sums over ranks come back by themselves, in the layer's next forward.
        hooks = [one for one in hooks_on_gradient(parameter) if not isinstance(one, SumOverRanks)]
        if hooks or gradient_hooks(parameter) or placement_of(parameter).cuts:
            raise ValueError(
                f"{name} has a hook on its gradient, or copies on other ranks, and neither moves along: do in the "
                "training loop what the hook does, or use Pipeline with cuts that stay"
            )


def check_optimizer(optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
    """Raises ValueError unless it is of this rank's trained parameters, in one group, and keeps states by parameter.

    Frozen ones may be in it as well.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "LBFGS keeps one history of all parameters together, of which no part moves with a layer: take another "
            "optimizer, or Pipeline with cuts that stay"
        )
    if len(optimizer.param_groups) != 1:
        raise ValueError(
            f"the optimizer has {plural(len(optimizer.param_groups), 'group')} of parameters, and a layer that "
            "comes would not know its own: stages move with one group"
        )
    of_optimizer = set(optimizer.param_groups[0]["params"])
    trained = {p for p in module.parameters() if p.requires_grad}
    if not trained <= of_optimizer <= set(module.parameters()):
        raise ValueError(
            "the optimizer is not of this rank's trained parameters: make it of moving.module.parameters(), once, "
            "before the first step"
        )


def take_parameters(optimizer: torch.optim.Optimizer, module: nn.Module, frozen: bool) -> None:
    """The optimizer is of these parameters from here on. frozen: of those that are not trained, too."""
    named = [(n, p) for n, p in module.named_parameters() if frozen or p.requires_grad]
    group = optimizer.param_groups[0]
    group["params"] = [parameter for _, parameter in named]
    if "param_names" in group:
        group["param_names"] = [name for name, _ in named]
