"""Two binary trees at once: the latency of a tree with the bandwidth of a ring.

In one binary tree only inner ranks work: half of the ranks are leaves, which send in a reduce but have nothing to pass
on in a broadcast. So cut the vector in two, and send each half over a tree of its own, made so that a rank that is
inner in one is a leaf in the other. Then every rank sends and receives about n elements up and n down in all_reduce.

Picture on 8 ranks (a line goes down from parent to child; the second tree is the first, mirrored):

    0                       7
    '-- 4                   '-- 3
        |-- 2               |   |-- 5
        |   |-- 1           |   |   |-- 6
        |   '-- 3           |   |   '-- 4
        '-- 6               |   '-- 1
            |-- 5           |       |-- 2
            '-- 7           |       '-- 0

Each half is cut into chunks, which follow each other up and down: when the first comes down, later ones still go up.
Per rank: at most 2 n elements sent, each as ceil(n / chunk) messages a tree. Time about 2 log2 p a + 2 n b.
Memory: two chunks of scratch for each child.

Paper: Sanders, Speck and Traeff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan". The shape
of the trees is the one that NCCL uses, read off the bits of a rank's number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.distributed import Work

from dtcourse.collectives import forms, p2p
from dtcourse.collectives.chunks import (
    TAG,
    Sent,
    arriving,
    blocks_of,
    chunk_count,
    cut,
    even_bounds,
    total,
)
from dtcourse.collectives.reduce_ops import Reduction

CHUNK_BYTES = 512 << 10  # small enough that a tree of a few levels is full of chunks
AHEAD = 2  # receives posted at a time, on each link
UP, DOWN = 0, 1

# --- the trees -------------------------------------------------------------------------------------------------


class Node(NamedTuple):
    """A rank's place in one tree: its parent (None for the root) and its children, at most two."""

    parent: int | None
    children: tuple[int, ...]


def two_trees(ranks: int) -> tuple[list[Node], list[Node]]:
    """The two trees: a Node for each rank, twice.

    The second is the first with the ranks renumbered: mirrored where p is even, moved by one where it is odd. Either
    way odd and even change places, and in the first tree all odd ranks are leaves.
    """
    first = [_place(v, ranks) for v in range(ranks)]
    if ranks % 2 == 0:
        renumbered = [ranks - 1 - v for v in range(ranks)]
    else:
        renumbered = [(v + 1) % ranks for v in range(ranks)]
    second = [Node(None, ())] * ranks
    for v, node in enumerate(first):
        up = None if node.parent is None else renumbered[node.parent]
        second[renumbered[v]] = Node(up, tuple(renumbered[c] for c in node.children))
    return first, second


def _place(v: int, ranks: int) -> Node:
    return Node(_parent(v, ranks), tuple(c for c in range(ranks) if _parent(c, ranks) == v))


def _parent(v: int, ranks: int) -> int | None:
    """In binary, ..01 and ..11 hang below ..10, and that below .100: the lowest one bit moves one place up.

    Where that number is too large, the bit is dropped instead. 0 is the root.
    """
    if v == 0:
        return None
    bit = v & -v
    up = (v ^ bit) | (bit << 1)
    return up if up < ranks else v ^ bit


# --- up and down one tree --------------------------------------------------------------------------------------


class _Half:
    """One half of the vector on its tree, seen from one rank."""

    def __init__(self, node: Node, chunks: Sequence[torch.Tensor], tag: int, group: Any) -> None:
        self.node, self.chunks, self.group, self.tag = node, chunks, group, tag
        self.sending: list[Work] = []
        self._up: list[Iterator[torch.Tensor]] = []
        self._down: Iterator[torch.Tensor] = iter(())

    def receive_up(self) -> None:
        """Posts the first receives from the children, into scratch."""
        for child in self.node.children:
            into = _slots(self.chunks)
            self._up.append(arriving(into, child, self.group, self.tag + UP, AHEAD))

    def receive_down(self) -> None:
        """Posts the first receives from the parent, straight into place."""
        if self.node.parent is not None:
            self._down = arriving(self.chunks, self.node.parent, self.group, self.tag + DOWN, AHEAD)

    def up(self, i: int, reduction: Reduction, into: torch.Tensor) -> None:
        """Chunk i: combine the children's with the own, into `into`; send it to the parent."""
        mine = self.chunks[i]
        for arrived in self._up:
            reduction.combine(mine, next(arrived), out=into)
            mine = into
        if self.node.parent is not None:
            self._send(mine, self.node.parent, UP)

    def down(self, i: int) -> None:
        """Chunk i: receive it from the parent (the root has it), send it to the children."""
        if self.node.parent is not None:
            next(self._down)
        for child in self.node.children:
            self._send(self.chunks[i], child, DOWN)

    def _send(self, chunk: torch.Tensor, dst: int, direction: int) -> None:
        self.sending.append(p2p.isend(chunk, dst, self.group, self.tag + direction))

    def wait(self) -> None:
        """Waits for all that was sent."""
        for work in self.sending:
            work.wait()


def _slots(chunks: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Memory to receive these chunks into: AHEAD slots, used in turn. No chunk is longer than the first."""
    slots = [torch.empty_like(c) for c in chunks[:AHEAD]]
    for i, chunk in enumerate(chunks):
        yield slots[i % AHEAD][: len(chunk)]


def _halves(x: torch.Tensor, nodes: Sequence[Node], group: Any, chunk_bytes: int) -> list[_Half]:
    parts = blocks_of(x, even_bounds(len(x), 2))
    return [
        _Half(node, cut(part, chunk_bytes), TAG + 2 * t, group)
        for t, (node, part) in enumerate(zip(nodes, parts, strict=True))
    ]


# --- the algorithms --------------------------------------------------------------------------------------------


def all_reduce_steps(
    x: torch.Tensor, reduction: Reduction, group: Any, chunk_bytes: int = CHUNK_BYTES
) -> None:
    """Chunk by chunk: 1. up both trees, combined on the way; 2. at a root it is complete; 3. down the same tree."""
    rank, ranks = p2p.rank(group), p2p.size(group)
    halves = _halves(x, [tree[rank] for tree in two_trees(ranks)], group, chunk_bytes)
    for half in halves:
        half.receive_up()
        half.receive_down()  # a chunk comes down only after this rank has sent it up: its place is free by then
    # A chunk needs about two tree heights to come back; until then, later ones go up.
    delay = 2 * ranks.bit_length()
    count = max(len(half.chunks) for half in halves)
    # Upwards a leaf waits for nobody, so the tree in which this rank is one goes first; downwards, the tree in which
    # others wait for this rank. In the other order the two trees would take turns.
    leaf_first = sorted(halves, key=lambda half: len(half.node.children))
    for i in range(count + delay):
        for half in leaf_first:
            if i < len(half.chunks):
                half.up(i, reduction, into=half.chunks[i])
                if half.node.parent is None:
                    reduction.finish(half.chunks[i])
        for half in reversed(leaf_first):
            if 0 <= i - delay < len(half.chunks):
                half.down(i - delay)
    for half in halves:
        half.wait()


def broadcast_steps(x: torch.Tensor, root: int, group: Any, chunk_bytes: int = CHUNK_BYTES) -> None:
    """The root sends each chunk to the root of its tree; the trees are of all other ranks."""
    halves = _halves(x, _trees_below(root, group), group, chunk_bytes)
    for half in halves:
        half.receive_down()
    for i in range(max(len(half.chunks) for half in halves)):
        for half in halves:
            if i < len(half.chunks):
                half.down(i)
    for half in halves:
        half.wait()


def reduce_steps(
    x: torch.Tensor, root: int, reduction: Reduction, group: Any, chunk_bytes: int = CHUNK_BYTES
) -> None:
    """The same arrows turned round: each tree's root hands its chunks to the root."""
    rank = p2p.rank(group)
    halves = _halves(x, _trees_below(root, group), group, chunk_bytes)
    results = _halves(
        x if rank == root else torch.empty_like(x), [Node(None, ())] * 2, group, chunk_bytes
    )
    for half in halves:
        half.receive_up()
    for i in range(max(len(half.chunks) for half in halves)):
        for half, result in zip(halves, results, strict=True):
            if i < len(half.chunks):
                half.up(i, reduction, into=result.chunks[i])
    for half in halves:
        half.wait()


def _trees_below(root: int, group: Any) -> list[Node]:
    """This rank's place in two trees on the p - 1 other ranks, with `root` above the roots of both."""
    rank, ranks = p2p.rank(group), p2p.size(group)
    return [_below(tree, root, ranks)[rank] for tree in two_trees(ranks - 1)]


def _below(tree: Sequence[Node], root: int, ranks: int) -> list[Node]:
    actual = [
        (root + 1 + v) % ranks for v in range(ranks - 1)
    ]  # the others, in order, from the root's right
    nodes = [Node(None, ())] * ranks
    for v, node in enumerate(tree):
        up = root if node.parent is None else actual[node.parent]
        nodes[actual[v]] = Node(up, tuple(actual[c] for c in node.children))
        if node.parent is None:
            nodes[root] = Node(None, (actual[v],))
    return nodes


# --- what a rank sends -----------------------------------------------------------------------------------------


def all_reduce_sent(
    elements: int, ranks: int, rank: int, itemsize: int = 4, chunk_bytes: int = CHUNK_BYTES
) -> Sent:
    """In each tree n/2 to the parent, and n/2 to each child: with two children in one tree and none in the other, 2 n."""
    return total(
        _times(half, len(node.children) + (node.parent is not None))
        for half, node in _both(elements, two_trees(ranks), rank, itemsize, chunk_bytes)
    )


def broadcast_sent(
    elements: int,
    ranks: int,
    rank: int,
    root: int = 0,
    itemsize: int = 4,
    chunk_bytes: int = CHUNK_BYTES,
) -> Sent:
    """Sends n/2 to each child: n from the root, at most n from any rank."""
    trees = [_below(tree, root, ranks) for tree in two_trees(ranks - 1)]
    parts = _both(elements, trees, rank, itemsize, chunk_bytes)
    return total(_times(half, len(node.children)) for half, node in parts)


def reduce_sent(
    elements: int,
    ranks: int,
    rank: int,
    root: int = 0,
    itemsize: int = 4,
    chunk_bytes: int = CHUNK_BYTES,
) -> Sent:
    """Sends n/2 to the parent in each tree: n from each rank but the root."""
    trees = [_below(tree, root, ranks) for tree in two_trees(ranks - 1)]
    parts = _both(elements, trees, rank, itemsize, chunk_bytes)
    return total(_times(half, node.parent is not None) for half, node in parts)


def _both(
    elements: int, trees: Sequence[Sequence[Node]], rank: int, itemsize: int, chunk_bytes: int
) -> list[tuple[Sent, Node]]:
    bounds = even_bounds(elements, 2)
    sizes = [b - a for a, b in pairwise(bounds)]
    return [
        (Sent(chunk_count(size, itemsize, chunk_bytes), size), tree[rank])
        for size, tree in zip(sizes, trees, strict=True)
    ]


def _times(sent: Sent, times: int) -> Sent:
    return Sent(sent.messages * times, sent.elements * times)


# --- torch.distributed's calls ---------------------------------------------------------------------------------

all_reduce = forms.all_reduce(all_reduce_steps)
broadcast = forms.broadcast(broadcast_steps)
reduce = forms.reduce(reduce_steps)
