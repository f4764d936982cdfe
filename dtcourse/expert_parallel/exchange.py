"""Rows to the ranks that hold their experts, and back: dispatch and combine, all-to-alls with uneven splits.

Each rank has rows in the order of the experts, so many for each: blocks. Nobody knows how much will come, so the counts
travel first, and then the rows, in messages as long as the counts say. What arrives is in the order of the ranks, and
put together by expert. combine sends everything back the same way. (GShard, Lepikhin et al. 2006.16668, section 3.2;
there the blocks are padded to a capacity, here they are as long as they are.)

On one axis of p ranks, a rank sends each other one its rows in one message: p - 1 messages an all-to-all, none empty
but all small where p is large. On two axes, k nodes of g ranks, the same in two steps:

    inside    to place i of its own node, what goes to place i of *any* node: g - 1 messages
    between   place i of each node to place i of every other: k - 1 messages, of all g ranks' rows

So (k - 1) instead of (p - g) messages leave a node per rank, each g times as long. The bytes that leave the node are
the same; inside, rows for other nodes travel once more. (Hierarchical all-to-all: Tutel, Hwang et al. 2206.03382.)

Per rank and all-to-all: forward, D numbers for each row whose expert is elsewhere, (p - 1)/p of them where loads are
even; as much for combine, and the same again in backward: the all-to-all's transpose is the all-to-all the other way.
Counts: 8 bytes for each expert elsewhere, forward and dispatch only. Memory: the rows that arrive, which nobody can
bound but a capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.collectives import autograd, decisions
from dtcourse.parameters.replicas import Group


@dataclass(frozen=True)
class Blocks:
    """Rows in blocks, one after the other.

    rows_RD: all of them;  sizes: rows of each block, an integer tensor of any shape on the CPU, its last dim fastest
    """

    rows_RD: Tensor
    sizes: Tensor

    def permute(self, *dims: int) -> Blocks:
        """The blocks in another order: that of sizes.permute(dims)."""
        order = torch.arange(self.sizes.numel()).view(self.sizes.shape).permute(dims).flatten()
        sizes = self.sizes.permute(dims).contiguous()
        if torch.equal(order, order.sort().values):
            return Blocks(self.rows_RD, sizes)
        parts = self.rows_RD.split(self.sizes.flatten().tolist())
        return Blocks(torch.cat([parts[i] for i in order.tolist()]), sizes)

    def exchange(self, group: Group, received: Tensor | None = None) -> Blocks:
        """Blocks [r] go to rank r of the group, and [r] of the result are from it. Gradients go back the same way.

        received: the sizes of the result, where they are known; else they are exchanged first
        """
        if received is None:
            received = decisions.counts_from_all(self.sizes, group, self.rows_RD.device)
        sends, receives = (s.flatten(1).sum(1).tolist() for s in (self.sizes, received))
        rows_RD = autograd.all_to_all(self.rows_RD, receives, sends, group, using=dist)
        return Blocks(rows_RD, received)


@dataclass(frozen=True)
class Way:
    """How rows came: the sizes before each step, to send them back."""

    groups: tuple[Group, ...]
    sizes: tuple[Tensor, ...]


def dispatch(
    rows_RD: Tensor, counts_E: Tensor, groups: Sequence[Group]
) -> tuple[Tensor, Tensor, Way]:
    """This rank's rows, in the order of the experts -> all ranks' rows for this rank's experts, in their order.

    counts_E: rows of each expert. Rank r has the r-th part of the experts
    groups:   one for each axis over which experts are given out, the slowest first: (ranks,), or (nodes, ranks of a
              node)

    Returns rows_SD; counts, of this rank's experts; and the way back for `combine`. All ranks call it,
    also with no rows.
    """
    shape = [dist.get_world_size(group) for group in groups]
    counts_E = decisions.counts_here(counts_E, len(rows_RD), groups)
    blocks = Blocks(rows_RD, counts_E.view(*shape, -1))
    before = []
    for axis in reversed(range(len(groups))):
        before.append(blocks.sizes)
        front = _to_front(axis, len(shape) + 1)
        blocks = blocks.permute(*front).exchange(groups[axis]).permute(*_inverse(front))
    before.append(blocks.sizes)
    # by expert, then by the rank they came from
    blocks = blocks.permute(len(shape), *range(len(shape)))
    return blocks.rows_RD, blocks.sizes.flatten(1).sum(1), Way(tuple(groups), tuple(before))


def combine(rows_SD: Tensor, way: Way) -> Tensor:
    """The rows, in the order in which dispatch gave them, back to where they came from,
    in the order that they had there.
    """
    dims, sizes = len(way.groups) + 1, list(way.sizes)
    blocks = Blocks(rows_SD, sizes.pop().permute(dims - 1, *range(dims - 1)))
    blocks = blocks.permute(*range(1, dims), 0)
    for axis, group in enumerate(way.groups):
        front = _to_front(axis, dims)
        known = sizes.pop().permute(front).contiguous()
        blocks = blocks.permute(*front).exchange(group, known).permute(*_inverse(front))
    return blocks.rows_RD


def _to_front(axis: int, dims: int) -> list[int]:
    return [axis, *(d for d in range(dims) if d != axis)]


def _inverse(order: Sequence[int]) -> list[int]:
    return [list(order).index(d) for d in range(len(order))]
