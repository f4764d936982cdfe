"""The plain model's state, from a model whose experts are given out, and back into one: on any number of ranks.

    torch.save(full_state_dict(model), path)                 # whole, by the plain model's names; a collective
    load_full_state_dict(model, torch.load(path))            # each rank takes its experts' rows

Each expert's parameter is a run of rows of the plain model's, in the order of the ranks, so a state that 4 ranks saved
loads into one process or into 2. Memory: the whole model's once on each rank, for as long as the state is kept.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtcourse.expert_parallel.layer import ParallelExperts
from dtcourse.parameters.agreement import raise_on_all_ranks
from dtcourse.parameters.replicas import Group
from dtcourse.parameters.slices import EXPERT, require_whole
from dtcourse.torch_private import all_gather_single


def full_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The plain model's state, on every rank: it loads into that. A collective."""
    check_no_other_slices(model, "expert_parallel.full_state_dict")
    experts = experts_of(model)
    return {
        plain_name(name): joined(value, experts[name].groups if name in experts else ())
        for name, value in model.state_dict().items()
    }


def load_full_state_dict(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Takes this rank's experts out of each whole tensor, and all of the others. Every rank calls it,
    with the same state.

    Raises ValueError on all ranks, before anything is changed,
    for names that are missing or unexpected and other shapes.
    """
    check_no_other_slices(model, "expert_parallel.load_full_state_dict")
    experts, held = experts_of(model), model.state_dict()
    whole = {plain_name(name): (name, tuple(value.shape)) for name, value in held.items()}
    for name, module in experts.items():
        plain, shape = plain_name(name), tuple(held[name].shape)
        whole[plain] = name, (module.num_experts, *shape[1:])
    raise_on_all_ranks(lambda: _check(state, {n: shape for n, (_, shape) in whole.items()}))
    with torch.no_grad():
        for plain, (name, _) in whole.items():
            value = state[plain]
            held[name].copy_(experts[name].rows(value) if name in experts else value)


def experts_of(model: nn.Module) -> dict[str, ParallelExperts]:
    """By the name of each parameter that is given out: the module that says how."""
    return {
        f"{prefix}.{name}" if prefix else name: module
        for prefix, module in model.named_modules()
        if isinstance(module, ParallelExperts)
        for name, _ in module.named_parameters()
    }


def check_no_other_slices(model: nn.Module, who: str) -> None:
    """Raises ValueError where a parameter is another technique's slice, which would be taken for a whole one."""
    require_whole(
        model.named_parameters(),
        who,
        "it would take them for whole ones",
        "Use one of the two techniques for this model.",
        besides=(EXPERT,),
    )


def plain_name(name: str) -> str:
    """What the plain model calls it."""
    return name.replace("experts.mine.", "experts.")


def joined(mine: Tensor, groups: tuple[Group, ...]) -> Tensor:
    """All ranks' experts, in order; over no groups a copy."""
    whole = mine.detach().clone()
    for group in reversed(groups):
        part = whole.contiguous()
        whole = part.new_empty((len(part) * dist.get_world_size(group), *part.shape[1:]))
        all_gather_single(whole, part, group=group)
    return whole


def _check(state: Mapping[str, Tensor], shapes: dict[str, tuple[int, ...]]) -> None:
    missing, extra = sorted(shapes.keys() - state.keys()), sorted(state.keys() - shapes.keys())
    if missing or extra:
        raise ValueError(
            f"the state is of another model: missing {', '.join(missing[:3]) or 'nothing'}; unexpected "
            f"{', '.join(extra[:3]) or 'nothing'}. Nothing was loaded"
        )
    for name, shape in shapes.items():
        if tuple(state[name].shape) != shape:
            raise ValueError(
                f"{name}: the whole has shape {shape}, and the state {tuple(state[name].shape)}; it takes what "
                "full_state_dict or the plain model gives. Nothing was loaded"
            )
