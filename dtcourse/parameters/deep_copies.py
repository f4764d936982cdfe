"""What copy.deepcopy makes of a model that is cut: another model, cut alike over the same groups of ranks.

    best = copy.deepcopy(model)                  # for evaluation, a teacher, an average of weights; nothing is sent

A process group cannot be copied. The copy's modules hold the same groups as the original's, so its collectives meet
those of the other ranks' copies: all ranks copy the model, or none.

PyTorch copies a parameter without the attributes and the hooks that were set on it. Its placement is kept by its module
(kept_placements.py), and so are hooks that add up gradients (partial_gradients.py). A wrapper whose hooks
on parameters reduce gradients refuses to be copied; DistributedDataParallel makes its hooks anew.
"""

from __future__ import annotations

import copy
from typing import Any, Self

import torch.distributed as dist


class KnowsGroups:
    """A base of modules, and of what modules hold: a deep copy of one has all that it has, but for its groups."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Another one, with the very groups."""
        for value in vars(self).values():
            for one in value if isinstance(value, tuple | list) else (value,):
                if isinstance(one, dist.ProcessGroup):
                    memo[id(one)] = one
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(vars(self), memo))
        return made


class RefusesCopies:
    """A base of wrappers round `module` whose hooks on its parameters a copy would not have."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Raises ValueError: the gradients of a copy would stay on their rank."""
        name = type(self).__name__
        raise ValueError(
            f"a {name} is not copied: its hooks belong to one model, and a copy's gradients would stay on their rank. "
            f"Copy its .module, and wrap that in a {name} of its own if it is to be trained"
        )


class Said:
    """A base of what is never changed, and says where something is: a deep copy of it is itself."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Itself."""
        return self
