"""Layers that are cut, between neighbours that keep their tensors in another way: PyTorch's input and output layouts.

What enters a layer by columns is used by each rank for its own outputs. Where the ranks have slices of it, they gather
them, and the gradient's sum comes back by a reduce-scatter; a column-parallel layer of a replicated input has an
all-reduce there instead. What leaves a layer by rows is a sum, and a reduce-scatter leaves each rank its slice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch.nn.functional as F
from torch import Tensor, nn

from dtcourse.parameters.cuts import Sliced
from dtcourse.tensor_parallel import mappings
from dtcourse.tensor_parallel.embedding import ColumnParallelEmbedding, VocabParallelEmbedding
from dtcourse.tensor_parallel.layouts import dim_of, is_last, is_shard, replicated, summed
from dtcourse.tensor_parallel.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    as_autocast,
    column_linear,
)

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement


class _LaidOut:
    """What a layer has been told of its neighbours. None: as without layouts."""

    has: Placement | None = None
    wanted: Placement | None = None

    def between(self, has: Placement | None, wanted: Placement | None) -> Self:
        """Itself, for an input that comes as `has` says and an output that is to be as `wanted` says."""
        self.has, self.wanted = has, wanted
        return self


class LaidOutColumnLinear(_LaidOut, ColumnParallelLinear):
    """x as `has` says (None: Replicate) -> the outputs as `wanted` says (None: Shard(-1))."""

    def forward(self, x: Tensor) -> Tensor:
        if self.has is not None and is_shard(self.has):
            weight, bias = self.parameters_used()
            x, weight, bias = as_autocast(x, weight, bias)
            y = F.linear(mappings.enter(x, dim_of(self.has), self.group), weight, bias)
        else:
            (y,) = column_linear(replicated(x, self.has, self.group), [self], self.group)
        return _columns_as(y, self.wanted, self.shard)


class LaidOutRowLinear(_LaidOut, RowParallelLinear):
    """x as `has` says (None: Shard(-1)) -> the sum as `wanted` says (None: Replicate)."""

    def forward(self, x: Tensor) -> Tensor:
        if self.has is not None and self.has.is_partial():
            x = mappings.reduce_scatter(x, -1, self.group)
        elif self.has is not None and not is_last(x, self.has):
            x = mappings.scatter(replicated(x, self.has, self.group), -1, self.group)
        y = summed(F.linear(x, self.weight), self.wanted, self.group)
        if self.bias is None:
            return y
        bias: Tensor = self.bias
        if is_last(y, self.wanted):
            bias = mappings.scatter(bias, 0, self.group)
        elif is_shard(self.wanted):  # each rank adds it to its own part: the gradient is a sum
            bias = mappings.copy(bias, self.group)
        return y + bias.to(y.dtype)


def lay_out_embedding(
    embedding: ColumnParallelEmbedding | VocabParallelEmbedding,
    has: Placement | None,
    wanted: Placement | None,
) -> nn.Module:
    """The embedding, whose tokens come as `has` says, and whose rows are to be as `wanted` says: both None as it is."""
    group = embedding.group
    if has is not None:
        embedding.register_forward_pre_hook(
            lambda module, tokens: (replicated(tokens[0], has, group), *tokens[1:])
        )
    if isinstance(embedding, VocabParallelEmbedding):
        if is_shard(wanted):
            embedding.total = lambda y, group: summed(y, wanted, group)
    elif wanted is not None:
        embedding.register_forward_hook(
            lambda module, args, y: _columns_as(y, wanted, module.shard)  # type: ignore[arg-type]
        )
    return embedding


def _columns_as(y: Tensor, wanted: Placement | None, shard: Sliced) -> Tensor:
    """y, of which each rank has its columns, as `wanted` says. They stay for None, and for a Shard of the last dim."""
    if wanted is None or is_last(y, wanted):
        return y
    y = mappings.gather(F.pad(y, (0, shard.length - shard.used)), -1, shard.group)
    y = y[..., : shard.size]
    return mappings.scatter(y, dim_of(wanted), shard.group) if is_shard(wanted) else y
