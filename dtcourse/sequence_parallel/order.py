"""Which tokens of a long sequence a rank holds: neighbours,
or the order in which causal attention is equal work for all.

    contiguous   0 0 1 1 2 2 3 3   rank 3's queries see every key, rank 0's see its own alone
    zigzag       0 1 2 3 3 2 1 0   2 p chunks: rank r has chunk r, of the first half, and its mirror image in the second

A causal mask shows chunk i the chunks 0 to i. Under zigzag each rank has an early chunk and a late one, which together
see 2 p + 1 chunks on every rank. Source: Llama 3 (Grattafiori et al. 2407.21783, section 3.3.2); another order with
this aim is Striped Attention (Brandon et al. 2311.09431).

What is computed token by token (norms, MLPs, embeddings, the loss) does not see the order. Positions have to be told:
`positions(...)`, for Transformer's positions_S. Nothing is sent but by `unshard`: an all-gather.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtcourse.parameters.deep_copies import KnowsGroups
from dtcourse.parameters.replicas import Group
from dtcourse.torch_private import all_gather_single

DIM = 1  # tokens, in (batch, tokens, width)
ORDERS = ("contiguous", "zigzag")


class CutCore(KnowsGroups, nn.Module):
    """In the place of a Transformer block's `attention.core`, for a sequence that is cut over the ranks of a group."""

    def __init__(self, group: Group = None) -> None:
        super().__init__()
        self.group = group

    @property
    def ranks(self) -> int:
        """How many have a part of one sequence, of equal length each."""
        return dist.get_world_size(self.group)


def chunks_of(rank: int, size: int, order: str) -> tuple[int, ...]:
    """The chunks that a rank holds, in the order in which it holds them; zigzag cuts the sequence into 2 p, not p."""
    if order not in ORDERS:
        raise ValueError(f"order is 'contiguous' or 'zigzag'; got {order!r}")
    return (rank,) if order == "contiguous" else (rank, 2 * size - 1 - rank)


def positions(length: int, rank: int, size: int, order: str = "contiguous") -> Tensor:
    """The places in the whole sequence, of `length` tokens, of the tokens that rank `rank` of `size` holds.

    Raises ValueError where the sequence does not split into equal parts.
    """
    mine = chunks_of(rank, size, order)
    parts = len(mine) * size
    require_equal_parts(
        length, parts, f"{size} ranks in {order} order", padding="by tokens of document -1"
    )
    return torch.cat([torch.arange(length).chunk(parts)[chunk] for chunk in mine])


def require_equal_parts(
    length: int, parts: int, what: str, padding: str = "by tokens that the loss leaves out"
) -> None:
    """Raises ValueError, with the lengths that would do, where a sequence does not split into equal parts.

    what: that needs them;  padding: how one pads a sequence there
    """
    if length % parts or length < 1:
        lower = length // parts * parts
        near = f"{lower} or {lower + parts}" if lower else f"{parts}"
        raise ValueError(
            f"a sequence of {length} tokens cannot be split over {what}, which needs {parts} equal chunks; {near} "
            f"tokens would do: pad the sequence, {padding}, or cut it"
        )


def shard(x: Tensor, dim: int = 1, group: Group = None, order: str = "contiguous") -> Tensor:
    """This rank's tokens of x, which every rank has whole: x's values at `positions` along `dim`, in memory of its own.

    Raises ValueError where the sequence does not split into equal parts.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    places = positions(x.shape[dim], rank, size, order)
    return x.index_select(dim, places.to(x.device))


def unshard(x: Tensor, dim: int = 1, group: Group = None, order: str = "contiguous") -> Tensor:
    """The whole sequence on every rank, in its own order, from what each rank holds.
    No gradient goes back through it.
    """
    size = dist.get_world_size(group)
    first = x.detach().movedim(dim, 0).contiguous()
    parts = first.new_empty((size * first.shape[0], *first.shape[1:]))
    all_gather_single(parts, first, group=group)
    places = [positions(len(parts), rank, size, order) for rank in range(size)]
    whole = torch.empty_like(parts)
    whole[torch.cat(places).to(x.device)] = parts
    return whole.movedim(0, dim)
