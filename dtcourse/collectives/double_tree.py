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
A rank takes its chunks in the order of a timetable (`_timetable`), in which a chunk goes one level further per round.
Per rank: at most 2 n elements sent, each as ceil(n / chunk) messages a tree. Time about 2 log2 p a + 2 n b, and what it
takes to fill the trees with chunks (terms.py). Memory: two chunks of scratch for each child.

Paper: Sanders, Speck and Traeff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan". The shape
of the trees is the one that NCCL uses, read off the bits of a rank's number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch.distributed import Work

from dtcourse.collectives import forms, p2p
from dtcourse.collectives.chunks import (
    TAG,
    Volume,
    add_up,
    blocks_of,
    chunk_count,
    chunks_of,
    even_bounds,
    in_slots,
    receive_stream,
    scratch,
)
from dtcourse.collectives.reduce_ops import Reduction

# Smaller chunks fill the trees sooner and cost more messages; on a laptop's loopback few messages win.
CHUNK_BYTES = 4 << 20
AHEAD = 2  # receives posted at a time, on each link
UP, DOWN = 0, 1

# --- the trees -------------------------------------------------------------------------------------------------


class Node(NamedTuple):
    """A rank's place in one tree: its parent (None for the root), its children, at most two, and its level.

    level: 0 for a leaf; a parent's is above its children's
    """

    parent: int | None
    children: tuple[int, ...]
    level: int = 0


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
        second[renumbered[v]] = Node(up, tuple(renumbered[c] for c in node.children), node.level)
    return first, second


def _place(v: int, ranks: int) -> Node:
    children = tuple(c for c in range(ranks) if _parent(c, ranks) == v)
    return Node(_parent(v, ranks), children, _trailing_zeros(v) if v else root_level(ranks))


def root_level(ranks: int) -> int:
    """How many hops a chunk makes from the deepest leaf to the root, at most: ceil(log2 p)."""
    return max(ranks - 1, 0).bit_length()


def _trailing_zeros(v: int) -> int:
    return (v & -v).bit_length() - 1


def _parent(v: int, ranks: int) -> int | None:
    """In binary, ..01 and ..11 hang below ..10, and that below .100: the lowest one bit moves one place up.

    Where that number is too large, the bit is dropped instead. 0 is the root.
    """
    if v == 0:
        return None
    bit = v & -v
    up = (v ^ bit) | (bit << 1)
    return up if up < ranks else v ^ bit


# --- one half on its tree ----------------------------------------------------------------------------------------


class TreePipeline:
    """One half of the vector on its tree, seen from one rank."""

    def __init__(
        self,
        node: Node,
        chunks: Sequence[torch.Tensor],
        sums: Sequence[torch.Tensor],
        tag: int,
        group: Any,
    ) -> None:
        self.node, self.chunks, self.sums, self.tag, self.group = node, chunks, sums, tag, group
        self.sending: list[Work] = []
        self._up: list[Iterator[torch.Tensor]] = []
        self._down: Iterator[torch.Tensor] = iter(())

    def receive_up(self, memory: Iterator[torch.Tensor]) -> None:
        """Posts the first receives from the children, each into slots of its own."""
        for child in self.node.children:
            into = in_slots(self.chunks, next(memory), AHEAD)
            self._up.append(receive_stream(into, child, self.group, self.tag + UP, AHEAD))

    def receive_down(self) -> None:
        """Posts the first receives from the parent, straight into place."""
        if self.node.parent is not None:
            self._down = receive_stream(
                self.chunks, self.node.parent, self.group, self.tag + DOWN, AHEAD
            )

    def up(self, i: int, reduction: Reduction) -> None:
        """Chunk i: combine the children's with the own, into sums[i]; send it to the parent."""
        mine = self.chunks[i]
        for arrived in self._up:
            mine = reduction.combine(mine, next(arrived), out=self.sums[i])
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


def _halves(
    x: torch.Tensor,
    nodes: Sequence[Node],
    group: Any,
    chunk_bytes: int,
    sums: torch.Tensor | None = None,
) -> list[TreePipeline]:
    """Both halves of x, each on its tree. sums: what to combine into, where that is not x itself."""

    def halves_of(vector: torch.Tensor) -> list[list[torch.Tensor]]:
        halves = blocks_of(vector, even_bounds(len(vector), 2))
        return [chunks_of(half, chunk_bytes) for half in halves]

    mine = halves_of(x)
    sums_of = mine if sums is None else halves_of(sums)
    return [TreePipeline(nodes[t], mine[t], sums_of[t], TAG + 2 * t, group) for t in (0, 1)]


def _receive_up(halves: Sequence[TreePipeline]) -> None:
    """Posts both halves' first receives from the children, into one piece of scratch: AHEAD slots for each child."""
    links, chunks = sum(len(half.node.children) for half in halves), halves[0].chunks
    if links and chunks:  # where the first half is empty, the second is too
        memory = iter(scratch(links * AHEAD * len(chunks[0]), chunks[0]).chunk(links))
        for half in halves:
            half.receive_up(memory)


# --- the algorithms --------------------------------------------------------------------------------------------


def _timetable(halves: Sequence[TreePipeline]) -> list[tuple[int, TreePipeline, int]]:
    """All that this rank has to do, in order: (UP or DOWN, half, chunk).

    In each round a chunk sets out, and those under way go one level further: chunk i leaves level l in round i + l
    going up, and in round i + 2 * top - l coming down. What a rank waits for was sent in an earlier round, so nobody
    waits for itself. Within a round, up is before down; up, the tree in which this rank is a leaf and waits for nobody
    is first; down, the tree in which others wait for this rank.
    """
    top, turns = root_level(p2p.size(halves[0].group)), []
    for half in halves:
        level = half.node.level
        for i in range(len(half.chunks)):
            turns.append((i + level, UP, level, half, i))
            turns.append((i + 2 * top - level, DOWN, -level, half, i))
    turns.sort(key=itemgetter(0, 1, 2))
    return [(direction, half, i) for _, direction, _, half, i in turns]


def all_reduce_steps(
    x: torch.Tensor, reduction: Reduction, group: Any, chunk_bytes: int = CHUNK_BYTES
) -> None:
    """Each chunk: 1. up its tree, combined on the way; 2. at the root it is complete; 3. down the same tree."""
    rank, ranks = p2p.rank(group), p2p.size(group)
    halves = _halves(x, [tree[rank] for tree in two_trees(ranks)], group, chunk_bytes)
    _receive_up(halves)
    for half in halves:
        half.receive_down()  # a chunk comes down only after this rank has sent it up: its place is free by then
    for direction, half, i in _timetable(halves):
        if direction == DOWN:
            half.down(i)
            continue
        half.up(i, reduction)
        if half.node.parent is None:
            reduction.finish(half.chunks[i])
    for half in halves:
        half.wait()


def broadcast_steps(x: torch.Tensor, root: int, group: Any, chunk_bytes: int = CHUNK_BYTES) -> None:
    """The root sends each chunk to the root of its tree; the trees are of all other ranks."""
    halves = _halves(x, _trees_below(root, group), group, chunk_bytes)
    for half in halves:
        half.receive_down()
    for direction, half, i in _timetable(halves):
        if direction == DOWN:
            half.down(i)
    for half in halves:
        half.wait()


def reduce_steps(
    x: torch.Tensor, root: int, reduction: Reduction, group: Any, chunk_bytes: int = CHUNK_BYTES
) -> None:
    """The same arrows turned round: each tree's root hands its chunks to the root."""
    sums = x if p2p.rank(group) == root else torch.empty_like(x)  # only the root's x may change
    halves = _halves(x, _trees_below(root, group), group, chunk_bytes, sums)
    _receive_up(halves)
    for direction, half, i in _timetable(halves):
        if direction == UP:
            half.up(i, reduction)
    for half in halves:
        half.wait()


def _trees_below(root: int, group: Any) -> list[Node]:
    """This rank's place in two trees on the p - 1 other ranks, with `root` above the roots of both."""
    rank, ranks = p2p.rank(group), p2p.size(group)
    return [_below(tree, root, ranks)[rank] for tree in two_trees(ranks - 1)]


def _below(tree: Sequence[Node], root: int, ranks: int) -> list[Node]:
    # the others, in order, from the root's right
    actual = [(root + 1 + v) % ranks for v in range(ranks - 1)]
    nodes = [Node(None, ())] * ranks
    for v, node in enumerate(tree):
        up = root if node.parent is None else actual[node.parent]
        nodes[actual[v]] = Node(up, tuple(actual[c] for c in node.children), node.level)
        if node.parent is None:
            nodes[root] = Node(None, (actual[v],), node.level + 1)
    return nodes


# --- what a rank sends -----------------------------------------------------------------------------------------


def all_reduce_volume(
    elements: int, ranks: int, rank: int, itemsize: int = 4, chunk_bytes: int = CHUNK_BYTES
) -> Volume:
    """In each tree n/2 to the parent, and n/2 to each child: with two children in one
    tree and none in the other, 2 n.
    """
    return add_up(
        _times(half, len(node.children) + (node.parent is not None))
        for half, node in _both(elements, two_trees(ranks), rank, itemsize, chunk_bytes)
    )


def broadcast_volume(
    elements: int,
    ranks: int,
    rank: int,
    root: int = 0,
    itemsize: int = 4,
    chunk_bytes: int = CHUNK_BYTES,
) -> Volume:
    """Sends n/2 to each child: n from the root, at most n from any rank."""
    trees = [_below(tree, root, ranks) for tree in two_trees(ranks - 1)]
    parts = _both(elements, trees, rank, itemsize, chunk_bytes)
    return add_up(_times(half, len(node.children)) for half, node in parts)


def reduce_volume(
    elements: int,
    ranks: int,
    rank: int,
    root: int = 0,
    itemsize: int = 4,
    chunk_bytes: int = CHUNK_BYTES,
) -> Volume:
    """Sends n/2 to the parent in each tree: n from each rank but the root."""
    trees = [_below(tree, root, ranks) for tree in two_trees(ranks - 1)]
    parts = _both(elements, trees, rank, itemsize, chunk_bytes)
    return add_up(_times(half, node.parent is not None) for half, node in parts)


def _both(
    elements: int, trees: Sequence[Sequence[Node]], rank: int, itemsize: int, chunk_bytes: int
) -> list[tuple[Volume, Node]]:
    bounds = even_bounds(elements, 2)
    sizes = [b - a for a, b in pairwise(bounds)]
    return [
        (Volume(chunk_count(size, itemsize, chunk_bytes), size), tree[rank])
        for size, tree in zip(sizes, trees, strict=True)
    ]


def _times(sent: Volume, times: int) -> Volume:
    return Volume(sent.messages * times, sent.elements * times)


# --- torch.distributed's calls ---------------------------------------------------------------------------------

all_reduce = forms.all_reduce(all_reduce_steps)
broadcast = forms.broadcast(broadcast_steps)
reduce = forms.reduce(reduce_steps)
