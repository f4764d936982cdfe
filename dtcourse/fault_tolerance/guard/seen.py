"""What all ranks have seen of a step, together: the guard's two messages.

In a good step one all-reduce of three numbers in double precision, whatever the model's size: losses by their weights,
the weights, and how many ranks have something that is not finite. A nan is said by that number and never added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.parameters.placement import local
from dtcourse.parameters.replicas import Group
from dtcourse.torch_private import device_of_messages

MESSAGE = 24  # bytes of a good step's


def all_finite(gradients: Iterable[Tensor | None]) -> bool:
    """Whether this rank's pieces of these gradients are. One wait for each device, not for each gradient."""
    found = [local(g).isfinite().all() for g in gradients if g is not None]
    devices = {one.device for one in found}
    return all(
        bool(torch.stack([one for one in found if one.device == device]).all())
        for device in devices
    )


def summed(numbers: Sequence[float], group: Group) -> list[float]:
    """Their sums over the ranks, the same bits on all of them; of one process, the numbers. A collective."""
    if not dist.is_initialized():
        return list(numbers)
    together = torch.tensor(numbers, dtype=torch.double, device=device_of_messages(group))
    dist.all_reduce(together, group=group)
    return together.tolist()


def whose(bad_loss: bool, bad_gradients: bool, group: Group) -> str:
    """Which ranks have what that is not finite, in words. A collective, of a step that all know to be bad."""
    mine = torch.tensor([bad_loss + 2 * bad_gradients], dtype=torch.int32)
    ranks, everyone = [0], [mine]
    if dist.is_initialized():
        mine = mine.to(device_of_messages(group))
        ranks = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
        everyone = [torch.zeros_like(mine) for _ in ranks]
        dist.all_gather(everyone, mine, group=group)
    said = ("", "the loss", "gradients", "the loss and gradients")
    return "; ".join(
        f"not finite on rank {rank}: {said[int(one)]}"
        for rank, one in zip(ranks, everyone, strict=True)
        if one
    )
