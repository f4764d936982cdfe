"""Two levels: inside a node, where links are fast, and between nodes, where they are slow.

Picture for all_reduce on 2 nodes of 3 ranks (rank = node * 3 + place).

    1. inside   reduce-scatter: place i of each node has the node's sum of block i
    2. between  all-reduce of block i among the ranks at place i of all nodes, for all i at the same time
    3. inside   all-gather: each rank has all blocks

Of a node with g ranks, n elements must leave in step 2 whatever one does; here each rank sends only its 1/g of them.
Per rank, rings on both levels: (g - 1)/g n + 2 (k - 1)/k n/g + (g - 1)/g n elements for k nodes of g ranks; only the
middle term goes over the slow links, 1/g of what a flat ring sends over them at worst.
Any two algorithms can be put together: inside= and between= take modules of this package.
Memory: that of the two.

Paper: Cho, Finkler, Serrano, Kung and Hunter 2019, "BlueConnect: decomposing all-reduce for deep learning on
heterogeneous network hierarchy"; NCCL's and Horovod's hierarchical all-reduce are of this kind.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from dtcourse.collectives import forms, p2p, ring, tree
from dtcourse.collectives.chunks import Volume, blocks_of, even_bounds
from dtcourse.collectives.reduce_ops import Reduction
from dtcourse.collectives.subgroup import Subgroup


def levels(group: Any, node_size: int | None = None) -> tuple[Subgroup, Subgroup]:
    """The two groups that this rank is in: its node, and the ranks at its place in all nodes.

    node_size: ranks to a node; None takes what the launcher says (LOCAL_WORLD_SIZE), where that divides the group.
    """
    rank, ranks = p2p.rank(group), p2p.size(group)
    size = node_size if node_size is not None else _default_node_size(ranks)
    if size < 1 or ranks % size:
        raise ValueError(
            f"node_size={size} does not divide the group's {ranks} ranks into whole nodes"
        )
    first = rank // size * size
    node = Subgroup(group, range(first, first + size))
    across = Subgroup(group, range(rank % size, ranks, size))
    return node, across


def _default_node_size(ranks: int) -> int:
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    return local if local and ranks % local == 0 else ranks


# --- the algorithms --------------------------------------------------------------------------------------------


def all_reduce_steps(
    x: torch.Tensor,
    reduction: Reduction,
    group: Any,
    node_size: int | None = None,
    inside: ModuleType = ring,
    between: ModuleType = ring,
) -> None:
    """1. Reduce-scatter inside. 2. All-reduce between. 3. All-gather inside."""
    node, across = levels(group, node_size)
    bounds = even_bounds(len(x), node.size)
    inside.reduce_scatter_steps(x, bounds, reduction, node)
    between.all_reduce_steps(blocks_of(x, bounds)[node.rank], reduction, across)
    inside.all_gather_steps(x, bounds, node)


def reduce_scatter_steps(
    vector: torch.Tensor,
    bounds: Sequence[int],
    reduction: Reduction,
    group: Any,
    node_size: int | None = None,
    inside: ModuleType = ring,
    between: ModuleType = ring,
) -> None:
    """1. Put the blocks of one place together. 2. Reduce-scatter inside, so each place has its own. 3. And between."""
    node, across = levels(group, node_size)
    by_place, places = _by_place(vector, bounds, node.size)
    inside.reduce_scatter_steps(by_place, places, reduction, node)
    mine = blocks_of(by_place, places)[node.rank]
    own = _bounds_at(bounds, node.rank, node.size)
    between.reduce_scatter_steps(mine, own, reduction, across)
    blocks_of(vector, bounds)[p2p.rank(group)].copy_(blocks_of(mine, own)[across.rank])


def all_gather_steps(
    vector: torch.Tensor,
    bounds: Sequence[int],
    group: Any,
    node_size: int | None = None,
    inside: ModuleType = ring,
    between: ModuleType = ring,
) -> None:
    """1. All-gather between: each place has its blocks of all nodes. 2. All-gather inside. 3. Into rank order."""
    node, across = levels(group, node_size)
    by_place, places = _by_place(vector, bounds, node.size)
    mine = blocks_of(by_place, places)[node.rank]
    between.all_gather_steps(mine, _bounds_at(bounds, node.rank, node.size), across)
    inside.all_gather_steps(by_place, places, node)
    for place, part in enumerate(blocks_of(by_place, places)):
        here = blocks_of(part, _bounds_at(bounds, place, node.size))
        for i, block in enumerate(here):
            blocks_of(vector, bounds)[i * node.size + place].copy_(block)


def broadcast_steps(
    x: torch.Tensor,
    root: int,
    group: Any,
    node_size: int | None = None,
    inside: ModuleType = tree,
    between: ModuleType = tree,
) -> None:
    """1. Between nodes, among the ranks at the root's place. 2. Inside each node, from that place."""
    node, across = levels(group, node_size)
    place, home = root % node.size, root // node.size
    if node.rank == place:
        between.broadcast_steps(x, home, across)
    inside.broadcast_steps(x, place, node)


def reduce_steps(
    x: torch.Tensor,
    root: int,
    reduction: Reduction,
    group: Any,
    node_size: int | None = None,
    inside: ModuleType = tree,
    between: ModuleType = tree,
) -> None:
    """1. Inside each node, to the rank at the root's place. 2. Between those."""
    node, across = levels(group, node_size)
    place, home = root % node.size, root // node.size
    work = x if p2p.rank(group) == root else x.clone()  # only the root's x may change
    inside.reduce_steps(work, place, reduction, node)
    if node.rank == place:
        between.reduce_steps(work, home, reduction, across)


def barrier_steps(group: Any, node_size: int | None = None) -> None:
    """1. Everybody in the node has come. 2. Every node has. 3. Tell the node."""
    node, across = levels(group, node_size)
    tree.barrier_steps(node)
    if node.rank == 0:
        tree.barrier_steps(across)
    tree.barrier_steps(node)


def _bounds_at(bounds: Sequence[int], place: int, node_size: int) -> list[int]:
    """Bounds of the blocks at one place of each node, put one after the other."""
    result = [0]
    for r in range(place, len(bounds) - 1, node_size):
        result.append(result[-1] + bounds[r + 1] - bounds[r])
    return result


def _by_place(
    vector: torch.Tensor, bounds: Sequence[int], node_size: int
) -> tuple[torch.Tensor, list[int]]:
    """A copy with the blocks of place 0 of all nodes first, then those of place 1, ...; and where places begin."""
    blocks = blocks_of(vector, bounds)
    ordered = [b for place in range(node_size) for b in blocks[place::node_size]]
    places = [0]
    for place in range(node_size):
        places.append(places[-1] + _bounds_at(bounds, place, node_size)[-1])
    return torch.cat(ordered), places


# --- what a rank sends -----------------------------------------------------------------------------------------


def all_reduce_volume(
    elements: int, ranks: int, rank: int, node_size: int
) -> tuple[Volume, Volume]:
    """Inside and between, with rings on both: 2 (g - 1)/g n, and 2 (k - 1)/k n/g over the slow links."""
    place, nodes = rank % node_size, ranks // node_size
    bounds = even_bounds(elements, node_size)
    mine = bounds[place + 1] - bounds[place]
    within = ring.reduce_scatter_volume(elements, node_size, place) + ring.all_gather_volume(
        elements, node_size, place
    )
    return within, ring.all_reduce_volume(mine, nodes, rank // node_size)


# --- torch.distributed's calls ---------------------------------------------------------------------------------

all_reduce = forms.all_reduce(all_reduce_steps)
reduce_scatter = forms.reduce_scatter(reduce_scatter_steps)
reduce_scatter_single = forms.reduce_scatter_single(reduce_scatter_steps)
all_gather = forms.all_gather(all_gather_steps)
all_gather_single = forms.all_gather_single(all_gather_steps)
broadcast = forms.broadcast(broadcast_steps)
reduce = forms.reduce(reduce_steps)
barrier = forms.barrier(barrier_steps)
