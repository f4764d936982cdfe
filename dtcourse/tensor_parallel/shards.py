"""Modules that hold slices of parameters, and the whole model's state from them and into them.

Which slice a rank holds, and how the whole is put together again, is parameters/placement.py's: it rides on the
parameter, so states, norms and checkpoints find it there.

A dim that does not divide is padded with zeros up to the next multiple, so that all slices have one shape: a vocabulary
of 50257 on 4 ranks is cut as one of 50260, and the last rank's slice ends in 3 rows that nobody uses.
Where there are fewer parts than ranks, neighbours hold the same part (key-value heads): `copies` of each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dtcourse.parameters import whole
from dtcourse.parameters.cuts import Sliced
from dtcourse.parameters.deep_copies import KnowsGroups
from dtcourse.parameters.placement import Placement, place, placement_of


class Sharded(KnowsGroups, nn.Module):
    """A module that holds slices of parameters: `shards` says of which, by name. The others are whole on every rank."""

    def __init__(self) -> None:
        super().__init__()
        self.shards: dict[str, Sliced] = {}

    def held(self, name: str, whole: Tensor, shard: Sliced) -> nn.Parameter:
        """This rank's slice of the parameter `whole`, which is to be called `name`; frozen if the whole is."""
        self.shards[name] = shard
        mine = nn.Parameter(shard.cut(whole.detach()), requires_grad=whole.requires_grad)
        place(mine, placement_of(whole).beside(shard.group), shard)
        return mine

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Another parameter in a slice's place (load_state_dict(assign=True), tied weights) is a slice as well."""
        super().register_parameter(name, param)
        shard = self.shards.get(name)
        if param is not None and shard is not None and not hasattr(param, "placed"):
            shape = list(param.shape)
            shape[shard.dim] = shard.size
            place(param, Placement(torch.Size(shape)), shard)


# --- the whole model's state ------------------------------------------------------------------------------------


def full_state_dict(model: nn.Module) -> dict[str, Any]:
    """The unsharded model's state, on every rank: it loads into the plain model. A collective."""
    return whole.full_state_dict(model)


def full_gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """The unsharded model's gradients by name, on every rank; None where there is none. A collective."""
    return whole.full_gradients(model)


def load_full_state_dict(model: nn.Module, state: dict[str, Any]) -> None:
    """Loads the unsharded model's state: each rank takes its slices. Nothing is sent."""
    whole.load_full_state_dict(model, state, on_all_ranks=False)


# --- what does not divide ---------------------------------------------------------------------------------------


def require_divides(count: int, size: int, what: str) -> None:
    """Raises ValueError, with the numbers of ranks that would do, unless `count` divides evenly over `size` ranks."""
    if count % size:
        fits = ", ".join(map(str, divisors(count)))
        raise ValueError(f"{what}, {count}, cannot be cut over {size} ranks; {fits} ranks would do")


def divisors(count: int) -> list[int]:
    """All numbers of ranks that `count` divides evenly over."""
    return [n for n in range(1, count + 1) if count % n == 0]
