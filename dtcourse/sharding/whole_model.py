"""What happens to a model before it is cut up: the same on all ranks, on the right device, with memory.

A model too large for one rank is built on the meta device, where parameters have shapes and no memory:

    with torch.device("meta"):
        model = Transformer(config)
    fully_shard(model)          # the first rank fills one unit at a time, by reset_parameters, and deals it out
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.parameters.on_meta import give_buffers_memory, with_memory
from dtcourse.sharding.gathered_parameters import Named
from dtcourse.sharding.policies import ShardGroups
from dtcourse.torch_private import own_buffers, own_parameters


def materialise(
    named: list[Named], modules: dict[str, nn.Module], where: torch.device, first: bool
) -> list[Named]:
    """The parameters to cut up. Those on the meta device get memory and values on the first rank, the only one read."""
    empty = {p for _, p, _ in named if p.is_meta}
    if not empty:
        return named
    made = {p: with_memory(p, where) for p in empty if first}
    for name, module in modules.items():
        own = [p for p in own_parameters(module).values() if p is not None]
        give_buffers_memory(module, where)
        if any(p in empty for p in own):
            # on all ranks alike, or some would wait for ever
            if not hasattr(module, "reset_parameters"):
                raise ValueError(
                    f"{name or 'the module'} ({type(module).__name__}) is on the meta device and has no "
                    "reset_parameters to give its parameters values: add one, or build the model on the CPU"
                )
            for attribute, p in own_parameters(module).items():
                if p in made:
                    own_parameters(module)[attribute] = made[p]
    if first:
        for module in modules.values():
            if any(p in set(made.values()) for p in own_parameters(module).values()):
                module.reset_parameters()  # type: ignore[operator]
    return [(name, made.get(p, p), holders) for name, p, holders in named]


def must_wait(modules: dict[str, nn.Module]) -> bool:
    """Whether all parameters are on the meta device, and a module has no reset_parameters to give its own values."""
    own = {
        module: [p for p in own_parameters(module).values() if p is not None]
        for module in modules.values()
    }
    return all(p.is_meta for held in own.values() for p in held) and any(
        held and not hasattr(module, "reset_parameters") for module, held in own.items()
    )


def share_buffers(
    modules: Iterable[nn.Module], shard_groups: ShardGroups, where: torch.device
) -> None:
    """Every rank gets the first rank's buffers (running statistics), on the device, where they have memory."""
    for module in modules:
        for name, buffer in own_buffers(module).items():
            if buffer is None or buffer.is_meta:
                continue
            buffer = own_buffers(module)[name] = buffer.to(where)
            for group in filter(None, (shard_groups.shard, shard_groups.replicate)):
                dist.broadcast(buffer, group=group, group_src=0)
