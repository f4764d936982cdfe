"""Collectives as one writes them first: loops over the ranks, mostly on one root.

Picture: a star. The root talks to each of the p - 1 others in turn; they never talk to each other.

    reduce       1. each rank sends its whole vector to the root, which adds them up in rank order
    broadcast    2. the root sends the result to each rank
    all_reduce   both: a parameter server in two steps

The root's link is the bottleneck: n elements for each of p - 1 ranks, in and out, while all other links idle.
Per rank: 1 message of n elements. Root: p - 1 messages, (p - 1) n elements. The time grows linearly with p.
Memory: the root receives into one extra vector of n elements.

Paper: what every other algorithm is measured against; Chan et al. 2007, "Collective communication: theory, practice,
and experience", calls them the minimum-effort ones. The message counts are in the `..._volume` functions below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtcourse.collectives import forms, p2p, personal_forms
from dtcourse.collectives.chunks import (
    NOTHING,
    TAG,
    Volume,
    blocks_of,
    one_message,
    scratch,
    sync_byte,
)
from dtcourse.collectives.reduce_ops import Reduction

# --- the algorithms --------------------------------------------------------------------------------------------


def broadcast_steps(x: torch.Tensor, root: int, group: Any) -> None:
    """The root sends x to each other rank."""
    if not len(x):
        return
    if p2p.rank(group) != root:
        p2p.recv(x, root, group, TAG)
        return
    for dst in _others(root, group):
        p2p.send(x, dst, group, TAG)


def reduce_steps(x: torch.Tensor, root: int, reduction: Reduction, group: Any) -> None:
    """Each other rank sends x to the root, which adds them to its own in rank order."""
    if not len(x):
        return
    if p2p.rank(group) != root:
        p2p.send(x, root, group, TAG)
        return
    arrived = scratch(len(x), x)
    for src in _others(root, group):
        p2p.recv(arrived, src, group, TAG)
        reduction.combine(x, arrived, out=x)


def all_reduce_steps(x: torch.Tensor, reduction: Reduction, group: Any) -> None:
    """1. Reduce to rank 0. 2. Broadcast from rank 0."""
    reduce_steps(x, 0, reduction, group)
    if p2p.rank(group) == 0:
        reduction.finish(x)
    broadcast_steps(x, 0, group)


def scatter_steps(
    vector: torch.Tensor | None, bounds: Sequence[int], out: torch.Tensor, root: int, group: Any
) -> None:
    """The root sends block r of its vector to rank r."""
    if vector is None:
        if len(out):
            p2p.recv(out, root, group, TAG)
        return
    for dst, block in enumerate(blocks_of(vector, bounds)):
        if dst == root:
            out.copy_(block)
        elif len(block):
            p2p.send(block, dst, group, TAG)


def gather_steps(
    x: torch.Tensor, vector: torch.Tensor | None, bounds: Sequence[int], root: int, group: Any
) -> None:
    """Each rank sends x to the root, where it becomes block r of the vector."""
    if vector is None:
        if len(x):
            p2p.send(x, root, group, TAG)
        return
    for src, block in enumerate(blocks_of(vector, bounds)):
        if src == root:
            block.copy_(x)
        elif len(block):
            p2p.recv(block, src, group, TAG)


def reduce_scatter_steps(
    vector: torch.Tensor, bounds: Sequence[int], reduction: Reduction, group: Any
) -> None:
    """1. Reduce all of it to rank 0. 2. Scatter the blocks from there."""
    rank = p2p.rank(group)
    reduce_steps(vector, 0, reduction, group)
    mine = blocks_of(vector, bounds)[rank]
    if rank == 0:
        for dst, block in enumerate(blocks_of(vector, bounds)):
            if dst and len(block):
                p2p.send(block, dst, group, TAG)
    elif len(mine):
        p2p.recv(mine, 0, group, TAG)


def all_gather_steps(vector: torch.Tensor, bounds: Sequence[int], group: Any) -> None:
    """1. Gather the blocks on rank 0. 2. Broadcast the whole vector from there."""
    rank = p2p.rank(group)
    mine = blocks_of(vector, bounds)[rank]
    if rank == 0:
        for src, block in enumerate(blocks_of(vector, bounds)):
            if src and len(block):
                p2p.recv(block, src, group, TAG)
    elif len(mine):
        p2p.send(mine, 0, group, TAG)
    broadcast_steps(vector, 0, group)


def all_to_all_steps(
    x: torch.Tensor, x_bounds: Sequence[int], y: torch.Tensor, y_bounds: Sequence[int], group: Any
) -> None:
    """Everything at once: each rank starts all its sends and all its receives, then waits for all."""
    rank = p2p.rank(group)
    sends, receives = blocks_of(x, x_bounds), blocks_of(y, y_bounds)
    receives[rank].copy_(sends[rank])
    others = _others(rank, group)
    with p2p.batch(group):
        work = [p2p.irecv(receives[r], r, group, TAG) for r in others if len(receives[r])]
        work += [p2p.isend(sends[r], r, group, TAG) for r in others if len(sends[r])]
    for w in work:
        w.wait()


def barrier_steps(group: Any) -> None:
    """1. Every rank tells rank 0 that it is here. 2. Rank 0 tells every rank that all are."""
    here = sync_byte()
    if p2p.rank(group) != 0:
        p2p.send(here, 0, group, TAG)
        p2p.recv(here, 0, group, TAG)
        return
    for src in _others(0, group):
        p2p.recv(here, src, group, TAG)
    for dst in _others(0, group):
        p2p.send(here, dst, group, TAG)


def _others(rank: int, group: Any) -> list[int]:
    return [r for r in range(p2p.size(group)) if r != rank]


# --- what a rank sends -----------------------------------------------------------------------------------------


def broadcast_volume(elements: int, ranks: int, rank: int, root: int = 0) -> Volume:
    """Sends n elements to each of p - 1 ranks, from the root alone."""
    return _times(one_message(elements), ranks - 1) if rank == root else NOTHING


def reduce_volume(elements: int, ranks: int, rank: int, root: int = 0) -> Volume:
    """Sends n elements from each rank but the root."""
    return one_message(elements) if rank != root and ranks > 1 else NOTHING


def all_reduce_volume(elements: int, ranks: int, rank: int) -> Volume:
    """Rank 0: (p - 1) n; every other: n."""
    return reduce_volume(elements, ranks, rank) + broadcast_volume(elements, ranks, rank)


def scatter_volume(block: int, ranks: int, rank: int, root: int = 0) -> Volume:
    """Sends p - 1 blocks from the root."""
    return _times(one_message(block), ranks - 1) if rank == root else NOTHING


def gather_volume(block: int, ranks: int, rank: int, root: int = 0) -> Volume:
    """One block from each rank but the root."""
    return one_message(block) if rank != root else NOTHING


def reduce_scatter_volume(block: int, ranks: int, rank: int) -> Volume:
    """Each rank but 0: n = p blocks in one message. Rank 0: p - 1 blocks."""
    return reduce_volume(block * ranks, ranks, rank) + scatter_volume(block, ranks, rank)


def all_gather_volume(block: int, ranks: int, rank: int) -> Volume:
    """Each rank but 0: one block. Rank 0: n = p blocks to each of p - 1 ranks."""
    return gather_volume(block, ranks, rank) + broadcast_volume(block * ranks, ranks, rank)


def all_to_all_volume(block: int, ranks: int, rank: int) -> Volume:
    """One block to each other rank."""
    return _times(one_message(block), ranks - 1)


def _times(sent: Volume, times: int) -> Volume:
    return Volume(sent.messages * times, sent.elements * times)


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
all_to_all = personal_forms.all_to_all(all_to_all_steps)
all_to_all_single = personal_forms.all_to_all_single(all_to_all_steps)
barrier = forms.barrier(barrier_steps)
