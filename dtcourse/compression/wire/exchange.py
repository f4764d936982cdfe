"""What every scheme of averaging sends: everyone's message to everyone, or everyone's parts to the ranks that add them.

Bytes sent by each of p ranks: (p - 1) messages, as a ring; (p - 1) parts.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.parameters.replicas import Group
from dtcourse.torch_private import all_gather_single


def all_gather(message: Tensor, group: Group = None) -> Tensor:
    """(p, n): everyone's message, (n,) on every rank."""
    p = dist.get_world_size(group)
    everyone = message.new_empty(p * len(message))
    all_gather_single(everyone, message, group=group)
    return everyone.view(p, -1)


def all_to_all(parts: Tensor, group: Group = None) -> Tensor:
    """(p, n): what each rank has for this one, where parts, (p, n), are what this one has for each."""
    came = torch.empty_like(parts)
    dist.all_to_all_single(came, parts, group=group)
    return came
