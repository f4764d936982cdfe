"""What the model holds in a parameter's place: the elements that this rank keeps, and the whole one while it is freed.

Neither can be computed with. A part used as if it were whole fails with a message about shapes at best, and returns a wrong
result at worst (a row of a matrix is a fine argument for F.linear); a freed tensor ends the process. So both are
Parameters that look at each function called with them (__torch_function__) and say what is wrong. The whole one changes its
class when its memory comes and goes, and is a plain Parameter, at no cost, while it is computed with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Place:
    """One parameter's place in the flat."""

    name: str
    shape: torch.Size
    start: int
    end: int
    holders: tuple[tuple[nn.Module, str], ...]
    """The modules and attributes that hold it: several for a tied parameter."""


# What needs a whole parameter. On a part of one it fails with a message about shapes, or returns a wrong result.
_NEEDS_WHOLE = frozenset(
    {
        F.linear, F.bilinear, F.embedding, F.embedding_bag, F.conv1d, F.conv2d, F.conv3d, F.layer_norm, F.group_norm,
        F.batch_norm, F.rms_norm, F.prelu, F.scaled_dot_product_attention, torch.matmul, torch.mm, torch.bmm, torch.addmm,
        torch.einsum, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.Tensor.mm,
    }
)  # fmt: skip


class ShardedParameter(nn.Parameter):
    """The elements of one parameter that this rank keeps, shape (n,), where n may be 0: what the optimizer updates.

    Computing with it outside its module's forward, where it would have to be whole, is an error that says so.
    """

    place: Place
    unit_name = ""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func in _NEEDS_WHOLE:
                raise RuntimeError(_not_whole(args))
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.grad_fn is not None:
                raise RuntimeError(_not_whole(args))
        return result


class FreedParameter(nn.Parameter):
    """What a whole parameter is while its storage is empty: only its shape, dtype and the like may be asked for."""

    place: Place
    unit_name = ""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") not in ("__get__", "size", "dim", "numel", "stride"):
            raise RuntimeError(_not_whole(args))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def _not_whole(args: Any) -> str:
    found = [a for a in args if isinstance(a, (ShardedParameter, FreedParameter))]
    which = "a parameter"
    if found:
        place = found[0].place
        unit = found[0].unit_name or "the model"
        which = f"{place.name} {list(place.shape)} of {unit}"
    return (
        f"{which} is sharded, and was used as if it were whole: it is, while the forward and the backward of its "
        "module run. Call the module itself (model(x), not model.forward(x)), gather it with module.unshard() before "
        "and free it with module.reshard() after, or apply fully_shard to the module that uses it."
    )
