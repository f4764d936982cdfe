"""Who is a server and who a worker, and what travels between them.

Parameters travel as flat tensors, one for each dtype and device (parameters/buckets.py). With several servers each
flat tensor is cut into as many parts, of sizes that differ by one number at most, and server i has part i of each.

A worker's message begins with a header of HEADER_BYTES: what follows, and after how many gradients. After GRADIENT
come the parts of its gradient; nothing after DONE and GAVE_UP. The server answers a gradient with the parts of its
parameters, which need no header.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse import device
from dtcourse.parameters.agreement import raise_on_all_ranks
from dtcourse.parameters.buckets import Bucket, assign
from dtcourse.parameters.replicas import Group, broadcast_model
from dtcourse.parameters.same_model import check_same_model
from dtcourse.torch_private import gpu_backend_of

GRADIENT, DONE, GAVE_UP = range(3)
HEADER_BYTES = 16  # two int64: what it is, gradients sent so far
PUSH, PULL = 1, 2  # tags: a rank that is both must not take one for the other


@dataclass(frozen=True)
class Roles:
    """Ranks of the group, each in order."""

    servers: tuple[int, ...]
    workers: tuple[int, ...]


def meet(
    model: nn.Module,
    servers: int | Sequence[int],
    group: Group,
    as_server: bool | None,
    check: Callable[[Roles], None] = lambda roles: None,
) -> Roles:
    """Agrees on the roles, and gives every rank the first server's parameters and buffers. All ranks call it.

    as_server: whether this rank is about to serve; None: every rank serves, and works besides
    check:     raises ValueError for what else this rank finds wrong

    Raises ValueError, on all ranks, for servers that are no ranks, where nobody is left to work, where ranks name
    different servers or take another part than that, where they have built different models, and for a model with
    nothing to train. For a model on GPUs in a group that NCCL carries, too: a server takes gradients as they come, and
    NCCL carries out its messages in the order in which they were posted, so that servers would wait for each other.
    """
    if device.is_gpu(next(model.parameters()).device) and gpu_backend_of(_group(group)) is not None:
        raise ValueError(
            "a parameter server takes gradients as they come, and NCCL's messages come in the order of posting: pass "
            'group=dist.new_group(backend="gloo"), which carries tensors of GPUs by way of host memory'
        )
    size = dist.get_world_size(group)
    chosen = (servers,) if isinstance(servers, int) else tuple(servers)
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, (chosen, as_server), group=group)
    for other, (theirs, _) in enumerate(everyone):
        if theirs != everyone[0][0]:
            raise ValueError(
                f"rank 0 names {everyone[0][0]} as servers, rank {other} {theirs}: all ranks name the same"
            )
    if not chosen or len(set(chosen)) != len(chosen) or not all(0 <= s < size for s in chosen):
        raise ValueError(
            f"servers={chosen} in a group of {size}: each is another rank, 0 to {size - 1}"
        )
    both = [r for r, (_, serves) in enumerate(everyone) if serves is None]
    if both and len(both) < size:
        raise ValueError(
            f"rank {both[0]} works and serves, and so must all; {size - len(both)} do not"
        )
    wrong = [r for r, (_, serves) in enumerate(everyone) if serves not in (None, r in chosen)]
    if wrong:
        part = "a server and works" if wrong[0] in chosen else "no server and serves"
        raise ValueError(f"servers={chosen}, so rank {wrong[0]} is {part}")
    workers = tuple(r for r in range(size) if r not in chosen or as_server is None)
    if not workers:
        raise ValueError(
            f"{len(chosen)} of {size} ranks are servers, and no worker is left: launch at least {len(chosen) + 1} ranks"
        )
    check_same_model(model, group)
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("the model has no parameter that requires a gradient")
    roles = Roles(chosen, workers)
    raise_on_all_ranks(lambda: check(roles), group)
    broadcast_model(model, source=chosen[0], group=group)
    return roles


def _group(group: Group) -> dist.ProcessGroup:
    found = dist.group.WORLD if group is None else group
    assert found is not None, "a process group has been formed"
    return found


def flat_buckets(model: nn.Module) -> list[Bucket]:
    """All parameters that train, as one flat tensor a dtype and device: the same on every rank."""
    everything = 1 << 62
    trained = [p for p in model.parameters() if p.requires_grad]
    return assign(trained, everything, everything)


def part(flat: torch.Tensor, index: int, num_parts: int) -> torch.Tensor:
    """Part `index` of a flat tensor that is cut into num_parts: a view."""
    first = len(flat) * index // num_parts
    return flat[first : len(flat) * (index + 1) // num_parts]
