"""The operation that made the first number that is not finite, where such numbers have arrived in what is trained.

Not finite on purpose is what is filled in (a mask of -inf). What comes of numbers that were not finite already is not
the first. And what goes no further than a gradient that a loss scaler throws away is no mistake: it is told only where
a parameter has it after an optimizer's step, or what the program returns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from dtcourse.callers import callers
from dtcourse.debugging.sentences import line_in_words
from dtcourse.debugging.unasked.watch import unseen
from dtcourse.parameters.placement import local
from dtcourse.torch_private import TorchDispatchMode, is_fake, tree_leaves, without_modes

_FILLS = ("full", "fill", "masked_fill", "where", "scalar_tensor", "empty", "new_empty", "_to_copy")


class Born(NamedTuple):
    """Where the first one was made: which operation, how many of how many elements, and whether it has arrived."""

    operation: str
    where: str
    wrong: int
    of: int
    value: str
    arrived: bool


class FirstNotFinite(TorchDispatchMode):
    """Looks at the results of this rank's operations."""

    name = "numbers"

    def __init__(self) -> None:
        super().__init__()
        self._first: Born | None = None
        self._arrived = False
        self._handle: Any = None

    def begin(self) -> None:
        self._handle = register_optimizer_step_post_hook(self._has_stepped)
        self.__enter__()

    def end(self) -> Born | None:
        self.__exit__(None, None, None)
        self._handle.remove()
        return None if self._first is None else self._first._replace(arrived=self._arrived)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._first is not None:
            return func(*args, **kwargs)
        name = func.name().removeprefix("aten::").partition(".")[0]
        fills = name.rstrip("_") in _FILLS or "empty" in name
        with without_modes():
            finite = not fills and all(map(_is_finite, tree_leaves((args, kwargs))))
        result = func(*args, **kwargs)
        if finite:
            with without_modes():
                wrong = next((one for one in tree_leaves(result) if not _is_finite(one)), None)
                if wrong is not None:
                    self._note(name, local(wrong))
        return result

    def _note(self, name: str, tensor: torch.Tensor) -> None:
        tensor = _stored(tensor)
        wrong = tensor[~tensor.isfinite()]
        if not wrong.numel():
            return  # memory that a collective has filled meanwhile
        value = str(wrong.flatten()[0].item())
        where = line_in_words(callers())
        self._first = Born(name, where, wrong.numel(), tensor.numel(), value, False)

    @unseen
    def _has_stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._first is not None and not self._arrived:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            self._arrived = not all(map(_is_finite, parameters))


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return True  # a scale of the program's own
    if not isinstance(value, torch.Tensor):
        return True
    value = local(value.detach())
    if not value.is_floating_point() or value.is_meta or is_fake(type(value)):
        return True  # a FakeTensor is what DTensor asks for an operation's shape
    value = _stored(value)
    if value.numel() and not value.untyped_storage().nbytes():
        return True  # its memory has been given back, as a sharded model does between two uses
    return bool(value.isfinite().all())


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or the numbers that a sparse one keeps: it has no memory of its own that could be looked at."""
    if tensor.layout is torch.strided:
        return tensor
    return (tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor).values()


def made(seen: list[Any], results: list[Any]) -> str | None:
    """The first rank's first number that is not finite, if any has arrived."""
    returned = not all(map(_is_finite, tree_leaves(results))) or any(
        isinstance(x, float) and x - x != 0 for x in tree_leaves(results)
    )
    if not returned and not any(born is not None and born.arrived for born in seen):
        return None
    born = {rank: one for rank, one in enumerate(seen) if one is not None}
    # What a collective has brought was made by another rank.
    own = {rank: one for rank, one in born.items() if not one.operation.startswith("c10d::")}
    for rank, one in (own or born).items():
        return (
            f"On rank {rank}, {one.operation} made the first number that is not finite, {one.value} in {one.wrong} of "
            f"{one.of} elements, at {one.where}."
        )
    return None
