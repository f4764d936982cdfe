"""Are the replicas still the same? One checksum a tensor, compared over the ranks.

After the start data parallelism never sends weights again: replicas stay equal because they started equal and took the
same steps. A forgotten broadcast, a step that one rank skipped, or a flipped bit breaks that, and no loss curve shows
it: gradients are averaged as before, only they are gradients of different models.

The checksum is over the bits (parameters/checksum.py): any single changed bit changes it, and so do two elements that
change places. 8 bytes a tensor travel, not the model. On a schedule, with the optimizer's state, by majority and for
models that are cut as well: dtcourse.debugging.compare_replicas.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.parameters.checksum import checksum
from dtcourse.parameters.placement import local
from dtcourse.parameters.replicas import Group
from dtcourse.parameters.same_model import is_cut_over, named_tensors


class ReplicasDiffer(RuntimeError):
    """Ranks hold different values. .tensors: names of the parameters and buffers; .ranks: those unlike rank 0."""

    def __init__(self, tensors: list[str], ranks: list[int], total: int) -> None:
        self.tensors, self.ranks = tensors, ranks
        names = ", ".join(tensors[:5]) + (", ..." if len(tensors) > 5 else "")
        super().__init__(
            f"{len(tensors)} of {total} tensors are not the same on all ranks: {names}. Unlike rank 0's: those of "
            f"rank {', '.join(map(str, ranks))}. Did all ranks start from the same weights, and take every step?"
        )


def check_replicas(model: nn.Module, group: Group = None) -> None:
    """Raises ReplicasDiffer on every rank unless parameters and buffers are the same on all, bit for bit.

    All ranks must call it. Each sends its 8 bytes per tensor to every other one. What is cut over them is left out.
    """
    tensors = {n: local(t) for n, t in named_tensors(model) if not is_cut_over(t, group)}
    if not tensors:
        return
    mine = torch.stack([checksum(t) for t in tensors.values()])
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, mine, group=group)
    other = torch.stack(everyone) != everyone[0]  # (ranks, tensors)
    if other.any():
        names = [
            name for name, differs in zip(tensors, other.any(0).tolist(), strict=True) if differs
        ]
        ranks = other.any(1).nonzero().flatten().tolist()
        raise ReplicasDiffer(names, ranks, len(tensors))
