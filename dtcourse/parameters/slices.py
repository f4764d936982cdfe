"""Techniques that do not compose refuse each other: whoever would take a slice for the whole, or different ones for
copies, asks first.

    over ranks that hold      the same part                     different parts
    a mean of gradients       right: data parallelism           refused: `require_same`
    a cut                     by an outer technique: place      of some techniques refused: `require_whole`
    a cut of the same dim                                       refused: `require_uncut`
    a second mean             refused: `require_unsharded`, `require_unwrapped`

None of these fails by itself, and all are wrong. Where a parameter's pieces are, placement.py knows; norms, states and
checkpoints are right for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.parameters.backward import averaged_by
from dtcourse.parameters.cuts import EXPERT, FULL, OTHER, TENSOR, Sliced
from dtcourse.parameters.owners import is_copied
from dtcourse.parameters.placement import placement_of
from dtcourse.plural import plural

Named = Iterable[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class Slice:
    """What a parameter is a part of.

    technique: that has cut it;  over: the groups whose ranks hold different parts
    """

    technique: str
    over: tuple[dist.ProcessGroup | None, ...]


def slices_of(parameter: torch.Tensor) -> list[Slice]:
    """What a parameter is a part of, technique by technique, the innermost first; [] where it is whole."""
    found: dict[str, list[Any]] = {}
    if nn.parameter.is_lazy(parameter):  # it has no shape yet, and is nobody's
        return []
    for cut in placement_of(parameter).cuts:
        if cut.differs or cut.technique == FULL:  # which has hooks of its own even over one rank
            found.setdefault(cut.technique, []).append(cut)
    return [
        Slice(technique, tuple(cut.group for cut in cuts if cut.differs))
        for technique, cuts in found.items()
    ]


# --- who asks --------------------------------------------------------------------------------------------------------


def require_whole(
    named: Named, who: str, why: str, instead: str, besides: Iterable[str] = ()
) -> None:
    """Raises ValueError where a parameter is a slice of another technique than `besides`.

    who, why, instead: what asks, what would be wrong, and what to do, as parts of the message
    """
    besides = tuple(besides)
    cut = [(n, s) for n, p in named for s in slices_of(p) if s.technique not in besides]
    if cut:
        name, found = cut[0]
        raise ValueError(
            f"{who} does not compose with {found.technique} yet: {name} is a slice already{_and_others(cut)}, "
            f"{_ranks_of(found)} hold different ones, and {why}. {instead}"
        )


def require_uncut(wanted: Iterable[tuple[str, torch.Tensor, int]], parts: int, who: str) -> None:
    """Raises ValueError where a dim that is to be cut into `parts` is cut already.

    wanted: names, parameters and the dim of each
    """
    for name, parameter, dim in wanted if parts > 1 else ():
        for cut in placement_of(parameter).cuts:
            if isinstance(cut, Sliced) and cut.differs and cut.dim == dim:
                ranks = dist.get_process_group_ranks(cut.group)
                raise ValueError(
                    f"{who} would cut {name} into {parts} along dim {dim}, which {cut.technique} has cut already: "
                    f"{cut.size} into {cut.parts}, over ranks {_listed(ranks)}. Leave it out of one of the two, or cut "
                    "it along another dim there"
                )


def require_same(named: Named, group: dist.ProcessGroup | None, who: str) -> None:
    """Raises ValueError where ranks of the group hold different parts of a parameter: they are no copies."""
    mine = set(dist.get_process_group_ranks(group))
    for name, parameter in named:
        for found in slices_of(parameter):
            for over in found.over:
                together = sorted(mine & set(dist.get_process_group_ranks(over)))
                if len(together) > 1:
                    raise ValueError(
                        f"{who}: {name} is a slice, of {found.technique}, and ranks {_listed(together)} of this group "
                        "hold different ones, which would become the same. Take the group of ranks that hold the same "
                        "slices: the data axis of a mesh, init_device_mesh(device, (data, other), "
                        "mesh_dim_names=...)['data']"
                    )


def require_replicas(
    named: Named, group: dist.ProcessGroup | None, who: str, copies_part: bool = False
) -> None:
    """Raises ValueError where a mean of gradients over the group would not be the mean of all losses.

    Slices of tensor parallelism are averaged as they are, over ranks that hold the same ones. Experts have gradients of
    several ranks' losses, and gates of one: no one divisor is right for both. Sharded parameters are averaged already.

    copies_part: whether `who` rounds the mean of a tied parameter otherwise in each of a pipeline's stages
    """
    named = list(named)
    require_whole(
        named,
        who,
        "their gradients are of several ranks' losses and all others' of one rank's, so that a mean of both over one "
        "group is wrong for one of them",
        "Call expert_parallel.average_gradients(model, mesh) between backward and step; ZeroRedundancyOptimizer over "
        "the data axis of the mesh may follow it.",
        besides=(TENSOR, FULL, OTHER),
    )
    require_unsharded(named, who)
    require_same(named, group, who)
    if copies_part and dist.get_world_size(group) > 2:
        for name, parameter in named:
            if is_copied(parameter):
                raise ValueError(
                    f"{who}: other ranks of a pipeline hold copies of {name}, a tied parameter, and a mean over "
                    f"{dist.get_world_size(group)} ranks is rounded by who gets it: the copies would drift apart. "
                    "Wrap the stages in ShardedDataParallel(stage, optimizer), or pass "
                    "Pipeline(..., data_parallel=group): they average before the copies are added up"
                )


def require_unsharded(named: Named, who: str) -> None:
    """Raises ValueError for parameters of full sharding, which does the work of `who` by itself."""
    require_whole(
        named,
        who,
        "its gradients are reduced and averaged by its own hooks",
        "For copies of a sharded model pass fully_shard a mesh of two axes (replicate, shard); with one axis leave the "
        "other wrapper or optimizer out.",
        besides=(TENSOR, EXPERT, OTHER),
    )


def require_unwrapped(named: Named, who: str) -> None:
    """Raises ValueError where a wrapper that is alive averages the gradients which `who` will average by itself."""
    for name, parameter in named:
        if averaged_by(parameter):
            raise ValueError(
                f"{who}: the gradient of {name} is averaged by a data-parallel wrapper already. One technique averages "
                "over a data axis: pass the module without its wrapper, and let go of that first (del wrapper). For "
                f"copies of a sharded model give {who} a mesh of two axes (replicate, shard)."
            )


def _and_others(cut: list[Any]) -> str:
    return f" (and {plural(len(cut) - 1, 'other')})" if len(cut) > 1 else ""


def _ranks_of(found: Slice) -> str:
    ranks = sorted({r for group in found.over for r in dist.get_process_group_ranks(group)})
    return f"ranks {_listed(ranks)}"


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
