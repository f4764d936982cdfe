"""Which slice of a parameter a rank holds, how it is cut out of the whole, and how the whole is put together again.

A dim that does not divide is padded with zeros up to the next multiple, so that all slices have one shape: a vocabulary
of 50257 on 4 ranks is cut as one of 50260, and the last rank's slice ends in 3 rows that nobody uses.
Where there are fewer parts than ranks, neighbours hold the same part (key-value heads): `copies` of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtcourse.parameters.replicas import Group
from dtcourse.parameters.slices import TENSOR, mark_slice, require_whole
from dtcourse.torch_private import all_gather_single


@dataclass(frozen=True)
class Shard:
    """Slices of one parameter along a dim.

    dim:    the one that is cut;  size: the whole parameter's size there
    group:  the ranks that share it;  copies: neighbouring ranks that hold the same slice, a divisor of their number
    """

    dim: int
    size: int
    group: Group = None
    copies: int = 1

    @property
    def parts(self) -> int:
        return dist.get_world_size(self.group) // self.copies

    @property
    def part(self) -> int:
        """The number of the part that this rank holds."""
        return dist.get_rank(self.group) // self.copies

    @property
    def length(self) -> int:
        """Of each slice along `dim`, padding included."""
        return -(-self.size // self.parts)

    @property
    def start(self) -> int:
        """Where this rank's slice begins."""
        return self.part * self.length

    @property
    def used(self) -> int:
        """How much of this rank's slice is no padding; 0 where nothing is left for it."""
        return max(0, min(self.length, self.size - self.start))

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's slice of the whole, in memory of its own."""
        shape = list(whole.shape)
        shape[self.dim] = self.length
        mine = whole.new_zeros(shape)
        if self.used:
            own = whole.narrow(self.dim, self.start, self.used)
            mine.narrow(self.dim, 0, self.used).copy_(own)
        return mine

    def join(self, mine: Tensor) -> Tensor:
        """The whole, from all ranks' slices, on every rank. A collective: all ranks of the group call it."""
        ranks = dist.get_world_size(self.group)
        slices = mine.new_empty((ranks, *mine.shape))
        all_gather_single(slices.flatten(0, 1), mine.contiguous(), group=self.group)
        return torch.cat([*slices[:: self.copies]], dim=self.dim).narrow(self.dim, 0, self.size)


class Sharded(nn.Module):
    """A module that holds slices of parameters: `shards` says of which, by name. The others are whole on every rank."""

    def __init__(self) -> None:
        super().__init__()
        self.shards: dict[str, Shard] = {}

    def held(self, name: str, whole: Tensor, shard: Shard) -> nn.Parameter:
        """This rank's slice of the parameter `whole`, which is to be called `name`; frozen if the whole is."""
        self.shards[name] = shard
        mine = nn.Parameter(shard.cut(whole.detach()), requires_grad=whole.requires_grad)
        mark_slice(mine, TENSOR, shard.group)
        return mine


# --- the whole model's state ------------------------------------------------------------------------------------


def shards_of(model: nn.Module) -> dict[str, Shard]:
    """The shard of each parameter that is cut, by its name in `model`."""
    return {
        f"{prefix}.{name}" if prefix else name: shard
        for prefix, module in model.named_modules()
        for name, shard in (module.shards.items() if isinstance(module, Sharded) else ())
    }


def full_state_dict(model: nn.Module) -> dict[str, Any]:
    """The unsharded model's state, on every rank: it loads into the plain model. A collective."""
    check_no_other_slices(model, "tensor_parallel.full_state_dict")
    shards = shards_of(model)
    return {
        name: shards[name].join(value.detach()) if name in shards else value.detach().clone()
        for name, value in model.state_dict().items()
    }


def full_gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """The unsharded model's gradients by name, on every rank; None where there is none. A collective."""
    check_no_other_slices(model, "tensor_parallel.full_gradients")
    shards, found = shards_of(model), {}
    for name, p in model.named_parameters():
        whole = None if p.grad is None else p.grad.detach()
        if whole is not None:
            whole = shards[name].join(whole) if name in shards else whole.clone()
        found[name] = whole
    return found


def load_full_state_dict(model: nn.Module, state: dict[str, Any]) -> None:
    """Loads the unsharded model's state: each rank takes its slices. Nothing is sent."""
    check_no_other_slices(model, "tensor_parallel.load_full_state_dict")
    shards = shards_of(model)
    for name, whole in state.items():
        if name in shards and whole.shape[shards[name].dim] != shards[name].size:
            raise ValueError(
                f"{name}: the whole has {shards[name].size} in dim {shards[name].dim}, and the state has shape "
                f"{tuple(whole.shape)}; it takes what full_state_dict or the plain model gives"
            )
    mine = {n: shards[n].cut(value) if n in shards else value for n, value in state.items()}
    model.load_state_dict(mine)


def check_no_other_slices(model: nn.Module, who: str) -> None:
    """Raises ValueError where a parameter is another technique's slice, which would be taken for a whole one."""
    require_whole(
        model.named_parameters(),
        who,
        "it would take them for whole ones",
        "Use one of the two techniques for this model.",
        besides=(TENSOR,),
    )


# --- what does not divide ---------------------------------------------------------------------------------------


def require_divides(count: int, size: int, what: str) -> None:
    """Raises ValueError, with the numbers of ranks that would do, unless `count` divides evenly over `size` ranks."""
    if count % size:
        fits = ", ".join(map(str, divisors(count)))
        raise ValueError(f"{what}, {count}, cannot be cut over {size} ranks; {fits} ranks would do")


def divisors(count: int) -> list[int]:
    """All numbers of ranks that `count` divides evenly over."""
    return [n for n in range(1, count + 1) if count % n == 0]
