"""A model that this rank has whole and to itself: asked by whoever takes it for everybody's, or averages its gradients.

    a model that                              for example                                  asked by
    lies in parts on the ranks                tensor parallelism, full sharding            `require_whole_here`
    is a pipeline's, each rank with stages    pipeline.module                              `require_all_here`
    has a wrapper that averages gradients     DistributedDataParallel, ZeRO-2, PyTorch's   `require_own_gradients`

`require_whole_here` asks for the second, too.
"""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dtcourse.parameters.backward import averaged_by
from dtcourse.parameters.naming import entries
from dtcourse.parameters.owners import owners_of
from dtcourse.parameters.slices import slices_of
from dtcourse.plural import plural
from dtcourse.torch_private import comm_hooks_of, forward_of_torchs_wrapper


def require_whole_here(model: nn.Module, who: str, instead: str) -> None:
    """Raises ValueError, naming a parameter, for a model of which this rank has a part."""
    cut = [(e.names[0], s) for e in entries(model) for s in slices_of(e.parameter) if s.over]
    if cut:
        name, found = cut[-1]
        others = f" (and {plural(len(cut) - 1, 'other')})" if len(cut) > 1 else ""
        raise ValueError(
            f"{who} takes a model that each rank has whole, and {name}{others} lies in parts on the ranks, by "
            f"{found.technique}. {instead}"
        )
    require_all_here(model, who, instead)


def require_all_here(model: nn.Module, who: str, instead: str) -> None:
    """Raises ValueError for a pipeline's module, of which each rank has other parameters."""
    if any(owners_of(module) for module in model.modules()):
        raise ValueError(
            f"{who} takes a model that each rank has whole, and this is a pipeline's, of which each rank has stages of "
            f"its own. {instead}"
        )


def require_own_gradients(
    model: nn.Module, who: str, instead: str, wrapper: nn.Module | None = None
) -> None:
    """Raises ValueError where a wrapper that is alive, another one than `wrapper`, averages the gradients."""
    averages = getattr(wrapper, "reducer", None)
    for name, module in model.named_modules():
        if isinstance(module, DistributedDataParallel) and module is not wrapper:
            where = name or "it"
            raise ValueError(
                f"{who} averages gradients itself, and PyTorch's DistributedDataParallel is round {where}. {instead}"
            )
    for name, parameter in model.named_parameters():
        if any(one is not averages for one in averaged_by(parameter)):
            raise ValueError(
                f"{who} averages gradients itself, and a data-parallel wrapper averages that of {name} already. "
                f"{instead}"
            )


def require_outermost(who: str) -> None:
    """Raises ValueError inside the forward of PyTorch's DistributedDataParallel. who: is asked, in its own forward"""
    if forward_of_torchs_wrapper() is not None:
        raise ValueError(
            f"PyTorch's DistributedDataParallel is round {who}, which averages the gradients itself: one of the two "
            "would average what the other has left. Leave PyTorch's out"
        )


def has_communication_hook(wrapper: nn.Module) -> bool:
    """Whether gradients are averaged by a function of the user's own (register_comm_hook)."""
    if isinstance(wrapper, DistributedDataParallel):
        return bool(comm_hooks_of(wrapper))
    return getattr(getattr(wrapper, "reducer", None), "hook", None) is not None
