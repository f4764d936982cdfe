"""What the model holds in a parameter's place: the elements that this rank keeps, and the whole one while it is freed.

Neither can be computed with. A part used as if it were whole fails with a message about shapes at best, and returns a
wrong result at worst (a row of a matrix is a fine argument for F.linear); a freed tensor ends the process. So both are
Parameters that look at each function called with them (__torch_function__) and say what is wrong. The whole one changes
its class when its memory comes and goes, and is a plain Parameter, at no cost, while it is computed with.

A part's gradient looks as well. Optimizers go element by element and are right on parts; a norm is not, and torch's
clip_grad_norm_ and GradScaler, LARS and LAMB would each rank take by its own. All of them ask the gradients for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dtcourse import nested
from dtcourse.parameters.placement import Placement
from dtcourse.torch_private import FOREACH_NORMS, as_plain_tensors, is_fake


@dataclass(frozen=True)
class Place:
    """One parameter's place in the whole."""

    name: str
    shape: torch.Size
    start: int
    end: int
    holders: tuple[tuple[nn.Module, str], ...]
    """The modules and attributes that hold it: several for a tied parameter."""
    trains: bool = True
    inside: Placement | None = None
    """Where it is a piece itself, of an inner technique: whose, and where the others are."""
    hooks: tuple[Any, ...] = ()
    """What was registered on its gradient before it was sharded: backward meets the whole one, and calls them there."""


# What needs a whole parameter. On a part of one it fails with a message about shapes, or returns a wrong result.
_NEEDS_WHOLE = frozenset(
    {
        F.linear, F.bilinear, F.embedding, F.embedding_bag, F.conv1d, F.conv2d, F.conv3d, F.layer_norm, F.group_norm,
        F.batch_norm, F.rms_norm, F.prelu, F.scaled_dot_product_attention, torch.matmul, torch.mm, torch.bmm,
        torch.addmm, torch.einsum, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__,
        torch.Tensor.mm,
    }
)  # fmt: skip


# What is another number for a part than for the whole.
_OF_THE_WHOLE = frozenset(
    {
        torch.norm, torch.Tensor.norm, torch.linalg.norm, torch.linalg.vector_norm, torch.linalg.matrix_norm,
        F.normalize, *FOREACH_NORMS,
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
        with as_plain_tensors():
            if func in _NEEDS_WHOLE:
                raise RuntimeError(_not_whole(args))
            if func in _OF_THE_WHOLE:
                raise RuntimeError(_of_a_part(func, args))
            if func is torch.autograd.grad:
                raise RuntimeError(
                    "torch.autograd.grad of sharded parameters: no graph ends in them. Call loss.backward() and read "
                    "their .grad, or sharding.full_gradients(model)"
                )
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.grad_fn is not None:
                raise RuntimeError(_not_whole(args))
        return result

    def make_gradient(self, run: torch.Tensor) -> ShardedGradient:
        """A gradient of this parameter, of its elements: shape (n,)."""
        gradient = run.as_subclass(ShardedGradient)
        # Without the modules: the collector cannot see that a gradient's parameter owns it, and would keep them for it.
        gradient.place = replace(self.place, holders=(), hooks=())
        gradient.unit_name = self.unit_name
        return gradient

    def register_hook(self, hook: Any) -> Any:
        """Refused: what backward meets are the whole parameters."""
        raise RuntimeError(
            f"a hook on {_words(self)} would never run: it is sharded, and backward meets the whole one. "
            "register_post_accumulate_grad_hook runs when this rank's part of the mean gradient is there"
        )


class ShardedGradient(torch.Tensor):
    """The gradient of a ShardedParameter: a tensor as any other, shape (n,), of which nobody takes the norm.

    What is computed from it, detach() included, is a plain tensor: the part's own norm is gradient.detach().norm().
    """

    place: Place
    unit_name = ""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _OF_THE_WHOLE:
            raise RuntimeError(_of_a_part(func, args))
        with as_plain_tensors():
            return func(*args, **(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled and copied as a plain tensor, without the modules that its place knows."""
        return self.detach().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return memo.setdefault(id(self), self.detach().clone())


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
        with as_plain_tensors():
            return func(*args, **(kwargs or {}))


def become(view: nn.Parameter, kind: type[nn.Parameter]) -> None:
    """A view of the whole is of this class from now on. A fake tensor is one by its class, so it stays what it is."""
    if not is_fake(type(view)):
        view.__class__ = kind


def _of_a_part(func: Any, args: Any) -> str:
    parts = [t for t in nested.tensors(args) if isinstance(t, (ShardedParameter, ShardedGradient))]
    whose = "its gradient" if isinstance(parts[0], ShardedGradient) else "it"
    with as_plain_tensors():
        held = parts[0].numel()
    return (
        f"{_words(parts[0])} is sharded, and {func.__name__} of {whose} would be of the {held} elements that "
        "this rank keeps: each rank would go on with a number of its own. To clip, or to read the norm, call "
        "model.clip_grad_norm_(max_norm), which asks all ranks; for loss scaling, "
        "dtcourse.memory.GradScaler(group=...); for whole tensors, sharding.full_gradients(model) and "
        "full_state_dict(model)."
    )


def _not_whole(args: Any) -> str:
    found = [a for a in args if isinstance(a, (ShardedParameter, FreedParameter))]
    which = _words(found[0]) if found else "a parameter"
    return (
        f"{which} is sharded, and was used as if it were whole: it is, while the forward and the backward of its "
        "module run. Call the module itself (model(x), not model.forward(x)), gather it with module.unshard() before "
        "and free it with module.reshard() after, or shard the module that uses it."
    )


def _words(held: Any) -> str:
    return f"{held.place.name} {list(held.place.shape)} of {held.unit_name or 'the model'}"
