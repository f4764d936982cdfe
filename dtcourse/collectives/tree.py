"""The binomial tree: in each round, every rank that has something passes it to one that has nothing.

Picture: broadcast from rank 0 on 8 ranks.

    round 1   0 -> 4
    round 2   0 -> 2   4 -> 6
    round 3   0 -> 1   2 -> 3   4 -> 5   6 -> 7

Reduce is the same picture with the arrows turned round and the rounds in reverse; scatter sends with each arrow only
the blocks of those behind it, gather brings them back. A root other than 0 renumbers the
ranks: v = (rank - root) mod p.

Rounds: ceil(log2 p), the fewest there can be. But the whole vector goes along each arrow of a broadcast or reduce, so
the root sends (or gets) n ceil(log2 p) elements: good for small messages, poor for large ones.
all_reduce: reduce to 0, then broadcast from 0. Time 2 log2 p a + 2 n log2 p b + n log2 p g.
Memory: one more vector on a rank that combines.

Paper: Chan, Heimlich, Purkayastha and van de Geijn 2007, "Collective communication: theory, practice, and experience".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from dtcourse.collectives import forms, p2p, personal_forms
from dtcourse.collectives.chunks import (
    NOTHING,
    TAG,
    Volume,
    add_up,
    blocks_of,
    bounds_of,
    one_message,
    scratch,
    sync_byte,
)
from dtcourse.collectives.reduce_ops import Reduction

# --- the tree --------------------------------------------------------------------------------------------------


def parent(v: int) -> int | None:
    """The rank that v gets a broadcast from: v without its lowest one bit (6 = 110 has 4 = 100). None for the root."""
    return v & (v - 1) if v else None


def children(v: int, ranks: int) -> list[int]:
    """The ranks that v sends to, nearest first: v + 1, v + 2, v + 4, ..., below v's own lowest one bit."""
    bits = [1 << i for i in range(max(ranks - 1, 0).bit_length())]
    below = [b for b in bits if not v or b < (v & -v)]
    return [v + b for b in below if v + b < ranks]


def subtree(v: int, ranks: int) -> int:
    """How many ranks are at and below v. They are v, v + 1, ...: neighbours in number."""
    return min(v & -v, ranks - v) if v else ranks


# --- the algorithms --------------------------------------------------------------------------------------------


def broadcast_steps(x: torch.Tensor, root: int, group: Any) -> None:
    """1. Receive from the parent. 2. Send to the children, the one with most ranks behind it first."""
    if not len(x):
        return
    v, ranks = _number(root, group)
    above = parent(v)
    if above is not None:
        p2p.recv(x, (above + root) % ranks, group, TAG)
    below = reversed(children(v, ranks))
    for work in [p2p.isend(x, (child + root) % ranks, group, TAG) for child in below]:
        work.wait()


def reduce_steps(x: torch.Tensor, root: int, reduction: Reduction, group: Any) -> None:
    """1. Receive from the children and combine, nearest first. 2. Send to the parent."""
    v, ranks = _number(root, group)
    combines = parent(v) is not None and children(v, ranks)
    # only the root's x may change
    _reduce_in_place(x.clone() if combines else x, root, reduction, group)


def _reduce_in_place(x: torch.Tensor, root: int, reduction: Reduction, group: Any) -> None:
    if not len(x):
        return
    v, ranks = _number(root, group)
    below, above = children(v, ranks), parent(v)
    arrived = scratch(len(x), x) if below else x
    for child in below:
        p2p.recv(arrived, (child + root) % ranks, group, TAG)
        reduction.combine(x, arrived, out=x)
    if above is not None:
        p2p.send(x, (above + root) % ranks, group, TAG)


def all_reduce_steps(x: torch.Tensor, reduction: Reduction, group: Any) -> None:
    """1. Reduce to rank 0. 2. Broadcast from rank 0."""
    _reduce_in_place(x, 0, reduction, group)
    if p2p.rank(group) == 0:
        reduction.finish(x)
    broadcast_steps(x, 0, group)


def scatter_steps(
    vector: torch.Tensor | None, bounds: Sequence[int], out: torch.Tensor, root: int, group: Any
) -> None:
    """1. Receive from the parent the blocks of all ranks at and below this one. 2. Send the children theirs."""
    v, ranks = _number(root, group)
    offsets = _offsets(bounds, root, ranks)  # of the blocks in the order of v
    first, last = offsets[v], offsets[v + subtree(v, ranks)]
    above = parent(v)
    if above is not None:
        blocks = torch.empty(last - first, dtype=out.dtype, device=out.device)
        if len(blocks):
            p2p.recv(blocks, (above + root) % ranks, group, TAG)
    elif vector is not None:
        blocks = torch.cat([vector[bounds[root] :], vector[: bounds[root]]])
    sending = []
    for child in reversed(children(v, ranks)):
        part = blocks[offsets[child] - first : offsets[child + subtree(child, ranks)] - first]
        if len(part):
            sending.append(p2p.isend(part, (child + root) % ranks, group, TAG))
    out.copy_(blocks[: len(out)])
    for work in sending:
        work.wait()


def gather_steps(
    x: torch.Tensor, vector: torch.Tensor | None, bounds: Sequence[int], root: int, group: Any
) -> None:
    """1. Receive from the children the blocks of all ranks below them. 2. Send all to the parent, the own first."""
    v, ranks = _number(root, group)
    offsets = _offsets(bounds, root, ranks)
    first, last = offsets[v], offsets[v + subtree(v, ranks)]
    above = parent(v)
    blocks = torch.empty(last - first, dtype=x.dtype, device=x.device)
    blocks[: len(x)] = x
    receiving = []
    for child in children(v, ranks):
        part = blocks[offsets[child] - first : offsets[child + subtree(child, ranks)] - first]
        if len(part):
            receiving.append(p2p.irecv(part, (child + root) % ranks, group, TAG))
    for work in receiving:
        work.wait()
    if above is not None:
        if len(blocks):
            p2p.send(blocks, (above + root) % ranks, group, TAG)
    elif vector is not None:
        wrapped = len(vector) - bounds[root]
        vector[bounds[root] :] = blocks[:wrapped]
        vector[: bounds[root]] = blocks[wrapped:]


def reduce_scatter_steps(
    vector: torch.Tensor, bounds: Sequence[int], reduction: Reduction, group: Any
) -> None:
    """1. Reduce to rank 0. 2. Scatter from there."""
    rank = p2p.rank(group)
    _reduce_in_place(vector, 0, reduction, group)
    mine = blocks_of(vector, bounds)[rank]
    out = torch.empty_like(mine)
    scatter_steps(vector if rank == 0 else None, bounds, out, 0, group)
    mine.copy_(out)


def all_gather_steps(vector: torch.Tensor, bounds: Sequence[int], group: Any) -> None:
    """1. Gather on rank 0. 2. Broadcast from there."""
    rank = p2p.rank(group)
    mine = blocks_of(vector, bounds)[rank]
    gather_steps(mine.clone(), vector if rank == 0 else None, bounds, 0, group)
    broadcast_steps(vector, 0, group)


def barrier_steps(group: Any) -> None:
    """A reduce of nothing, then a broadcast of nothing: one byte along each arrow, up and down."""
    here = sync_byte()
    v, ranks = _number(0, group)
    for child in children(v, ranks):
        p2p.recv(here, child, group, TAG)
    above = parent(v)
    if above is not None:
        p2p.send(here, above, group, TAG)
    broadcast_steps(here, 0, group)


def _number(root: int, group: Any) -> tuple[int, int]:
    ranks = p2p.size(group)
    return (p2p.rank(group) - root) % ranks, ranks


def _offsets(bounds: Sequence[int], root: int, ranks: int) -> list[int]:
    sizes = [b - a for a, b in pairwise(bounds)]
    return bounds_of([sizes[(v + root) % ranks] for v in range(ranks)])


# --- what a rank sends (blocks of equal size) ------------------------------------------------------------------


def broadcast_volume(elements: int, ranks: int, rank: int, root: int = 0) -> Volume:
    """Sends n elements to each child; the root has ceil(log2 p) children."""
    return add_up([one_message(elements)] * len(children((rank - root) % ranks, ranks)))


def reduce_volume(elements: int, ranks: int, rank: int, root: int = 0) -> Volume:
    """Sends n elements from each rank but the root."""
    return one_message(elements) if rank != root else NOTHING


def all_reduce_volume(elements: int, ranks: int, rank: int) -> Volume:
    """Sends n up, and n down to each child."""
    return reduce_volume(elements, ranks, rank) + broadcast_volume(elements, ranks, rank)


def scatter_volume(block: int, ranks: int, rank: int, root: int = 0) -> Volume:
    """To each child, a block for each rank at and below it; the root sends p - 1 blocks in ceil(log2 p) messages."""
    below = children((rank - root) % ranks, ranks)
    return add_up(one_message(block * subtree(child, ranks)) for child in below)


def gather_volume(block: int, ranks: int, rank: int, root: int = 0) -> Volume:
    """One block for each rank at and below this one, in one message; nothing from the root."""
    v = (rank - root) % ranks
    return one_message(block * subtree(v, ranks)) if v else NOTHING


def reduce_scatter_volume(block: int, ranks: int, rank: int) -> Volume:
    """A reduce of n = p blocks and a scatter of them."""
    return reduce_volume(block * ranks, ranks, rank) + scatter_volume(block, ranks, rank)


def all_gather_volume(block: int, ranks: int, rank: int) -> Volume:
    """A gather of p blocks and a broadcast of all of them."""
    return gather_volume(block, ranks, rank) + broadcast_volume(block * ranks, ranks, rank)


# --- torch.distributed's calls ---------------------------------------------------------------------------------

broadcast = forms.broadcast(broadcast_steps)
reduce = forms.reduce(reduce_steps)
all_reduce = forms.all_reduce(all_reduce_steps)
scatter = personal_forms.scatter(scatter_steps)
gather = personal_forms.gather(gather_steps)
all_gather = forms.all_gather(all_gather_steps)
all_gather_single = forms.all_gather_single(all_gather_steps)
reduce_scatter = forms.reduce_scatter(reduce_scatter_steps)
reduce_scatter_single = forms.reduce_scatter_single(reduce_scatter_steps)
barrier = forms.barrier(barrier_steps)
