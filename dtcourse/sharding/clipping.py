"""The global norm of gradients of which each rank holds a part, and clipping by it.

|g|^2 is a sum over all elements, so the ranks' parts of it are added: one all-reduce of one number for each group of
ranks that shares parameters out. Ranks that hold the same part (hybrid sharding) must not be added, or the norm grows by the
square root of their number. The padding holds no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist

from dtcourse.sharding.unit import Unit


def clip_sharded(
    units: Iterable[Unit], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> torch.Tensor:
    """Scales all gradients of the units so that their norm is at most `max_norm`; returns the norm before, on all ranks.

    norm_type: 1, 2, ... or inf
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm is above 0; got {max_norm}")
    if not norm_type > 0:
        raise ValueError(f"norm_type is above 0, or inf; got {norm_type}")
    infinite = math.isinf(norm_type)
    by_group: dict[object, list[torch.Tensor]] = {}
    where = {}
    for unit in units:
        where[unit.ranks.shard] = unit.device
        found = by_group.setdefault(unit.ranks.shard, [])
        found += [p.grad for flat in unit.flats for p in flat.sharded if p.grad is not None]
    sums = []
    for group, gradients in by_group.items():
        # Every rank takes part, also one that holds no gradient at all.
        parts = [torch.linalg.vector_norm(g.float(), norm_type) for g in gradients if g.numel()]
        mine = torch.stack(parts) if parts else torch.zeros(1)
        mine = mine.max() if infinite else mine.pow(norm_type).sum()
        mine = mine.to(where[group])
        dist.all_reduce(mine, op=dist.ReduceOp.MAX if infinite else dist.ReduceOp.SUM, group=group)  # type: ignore[arg-type]
        sums.append(mine)
    together = torch.stack(sums)
    norm = together.max() if infinite else together.sum().pow(1.0 / norm_type)
    if error_if_nonfinite and not torch.isfinite(norm):
        raise RuntimeError(f"the gradients' norm is {norm.item()}: there is nothing to clip to")
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in (g for gradients in by_group.values() for g in gradients):
        gradient.mul_(scale.to(gradient.device, gradient.dtype))
    return norm
