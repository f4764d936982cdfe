"""What was built before sharding and still holds the parameters as they were: optimizers,
and losses of earlier forwards.

Neither fails by itself: the optimizer would update tensors that the model no longer uses, the loss would give its
gradients to them. Replaced parameters are marked, and whoever meets the mark says so. So is an optimizer's state that
was loaded for other parts than this rank's, and an optimizer that is wrong on parts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dtcourse.plural import plural
from dtcourse.sharding.sharded_parameter import ShardedParameter


def mark_replaced(original: nn.Parameter, name: str) -> None:
    """Marks a parameter that a sharded one has replaced, so that whatever still holds it is told."""
    original._replaced_by = name  # type: ignore[attr-defined]
    if original.requires_grad:
        original.register_post_accumulate_grad_hook(_backward_of_old_forward)
    _watch_optimizers()


def _backward_of_old_forward(original: Any) -> None:
    raise RuntimeError(
        f"backward reached {original._replaced_by} as it was before it was sharded: this loss comes from a forward "
        "that ran before sharding. Run the sharded model's forward first."
    )


def _optimizer_will_step(optimizer: torch.optim.Optimizer, args: Any, keywords: Any) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    needs_whole = getattr(
        optimizer, "needs_whole_parameters", isinstance(optimizer, torch.optim.LBFGS)
    )
    if needs_whole and any(isinstance(p, ShardedParameter) for p in parameters):
        raise ValueError(
            f"{type(optimizer).__name__} looks at whole parameters (their norms, products of gradients), and each rank "
            "keeps a part of each: take one that goes element by element (SGD, Adam, AdamW), or keep the parameters "
            "whole, as sharding.ShardedDataParallel does."
        )
    for parameter, slots in optimizer.state.items():
        if isinstance(parameter, ShardedParameter):
            for slot, value in slots.items():
                if getattr(value, "ndim", 0) and value.numel() != parameter.data.numel():
                    raise ValueError(
                        f"the optimizer's {slot} of {parameter.place.name} has {value.numel()} elements and this "
                        f"rank's part {parameter.data.numel()}: a state of another number of ranks, or of a whole "
                        "model, was loaded. sharding.checkpoint saves and loads for any number of ranks."
                    )
    views = [p for p in parameters if hasattr(p, "place") and not isinstance(p, ShardedParameter)]
    if views:
        raise ValueError(
            f"this optimizer was built while parameters were gathered: it holds {len(views)} whole ones, the first "
            f"{views[0].place.name}, that are freed again and never trained. Call reshard() before you build it."
        )
    replaced = [p._replaced_by for p in parameters if hasattr(p, "_replaced_by")]
    if replaced:
        raise ValueError(
            f"this optimizer was built before the model was sharded: it holds {plural(len(replaced), 'parameter')} "
            f"that the model no longer uses ({', '.join(replaced[:3])}{', ...' if len(replaced) > 3 else ''}). "
            "Shard the model first, then build the optimizer."
        )


_watching: list[Any] = []


def _watch_optimizers() -> None:
    if not _watching:
        _watching.append(register_optimizer_step_pre_hook(_optimizer_will_step))
