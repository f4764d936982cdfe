"""What sharding refuses with the type of error that PyTorch's fully_shard raises for it, as well as with its own."""

from __future__ import annotations

from torch import nn

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


class ShardedTwice(ValueError, AssertionError):
    """A module was sharded a second time."""


class NotCopied(RuntimeError, AssertionError):
    """A sharded model was to be copied by copy.deepcopy."""


def refuse_container(module: nn.Module, made_by: str) -> None:
    """Raises ValueError for a list or a dict of modules that is never called. Its words begin as PyTorch's."""
    if isinstance(module, CONTAINERS) and type(module).forward is nn.Module.forward:
        raise ValueError(
            f"{made_by} does not support containers that do not implement forward: {type(module).__name__} has none. "
            "Parameters are gathered when their module is called, and this one never is. Shard the modules in it, or "
            "the module whose forward uses what is in it."
        )
