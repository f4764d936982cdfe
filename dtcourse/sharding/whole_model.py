"""What happens to a model before it is cut up: the same on all ranks, on the right device, with memory.

A model too large for one rank is built on the meta device, where parameters have shapes and no memory:

    with torch.device("meta"):
        model = Transformer(config)
    fully_shard(model)          # the first rank fills one unit at a time, by reset_parameters, and deals it out
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

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


def must_wait(modules: dict[str, nn.Module], asked: bool) -> bool:
    """Whether all parameters are on the meta device and stay there: it is asked for, or a module has no
    reset_parameters to give its own values.
    """
    own = {
        module: [p for p in own_parameters(module).values() if p is not None]
        for module in modules.values()
    }
    cannot = any(held and not hasattr(module, "reset_parameters") for module, held in own.items())
    return all(p.is_meta for held in own.values() for p in held) and (asked or cannot)


def give_memory_for(model: nn.Module, state: Mapping[str, Any]) -> None:
    """What is on the meta device and in a state gets memory on the state's device, with whatever values are in it.

    Raises ValueError, before anything is changed, for a state of other dtypes.
    """
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in held.items():
        given = state.get(name)
        if given is not None and given.dtype != tensor.dtype:
            raise ValueError(
                f"{name} is {tensor.dtype} here and {given.dtype} in the state: assign=True would change it for this "
                "load alone. Convert the model first (model.to(dtype)), or load without assign"
            )
    for prefix, module in model.named_modules():
        own = {**own_parameters(module), **own_buffers(module)}
        for name, mine in own.items():
            given = state.get(f"{prefix}.{name}" if prefix else name)
            if mine is not None and mine.is_meta and given is not None and not given.is_meta:
                module.to_empty(device=given.device, recurse=False)
                break


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
