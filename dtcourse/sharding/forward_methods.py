"""Methods besides forward that use a module's parameters: register_fsdp_forward_method, as PyTorch has it.

    fully_shard(model)
    register_fsdp_forward_method(model, "generate")     # model.generate(x) gathers, computes and frees, as model(x)

Parameters are gathered when a module is called, and a method that is called by its name alone finds parts. Registered,
it runs between the same hooks as forward; so its backward gathers and reduces as well.
"""

from __future__ import annotations

from functools import wraps
from types import MethodType
from typing import Any

from torch import nn

from dtcourse.sharding.hooks import Hooks
from dtcourse.sharding.sharded_module import ShardedModule


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Has the method gather the module's parameters before it and free them after. Does nothing for a plain module.

    A method that runs inside the module's forward, or inside another registered one, finds them whole, and is called
    as it is.
    Raises ValueError where the module has no such method.
    """
    if not isinstance(module, ShardedModule):
        return
    method: Any = getattr(module, method_name, None)
    if not callable(method):
        raise ValueError(
            f"{type(module).__name__} does not have a method {method_name}: name one that uses its parameters"
        )
    hooks: Hooks = vars(module)["_fsdp_hooks"]

    @wraps(method)
    def between_hooks(self: nn.Module, *args: Any, **keywords: Any) -> Any:
        return hooks.run(method, args, keywords)

    setattr(module, method_name, MethodType(between_hooks, module))
