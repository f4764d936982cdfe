"""Two binary trees at once: the latency of a tree with the bandwidth of a ring.

In one binary tree only inner ranks work: half of the ranks are leaves, which send in a reduce but have nothing to pass
on in a broadcast. So cut the vector in two, and send each half over a tree of its own, made so that a rank that is
inner in one is a leaf in the other (but rank 0, for odd p). Each sends and receives about n up, n down in all_reduce.

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
takes to fill the trees with chunks (terms.py). Memory: for each child a chunk of scratch
for every round between its send and its use.

Paper: Sanders, Speck and Traeff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan".
The trees: two_trees.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

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
    scratch,
)
from dtcourse.collectives.reduce_ops import Reduction
from dtcourse.collectives.two_trees import Node, root_level, two_trees

# Smaller chunks fill the trees sooner and cost more messages; on a laptop's loopback few messages win.
CHUNK_BYTES = 4 << 20
UP, DOWN = 0, 1
EARLY = 2  # rounds by which a receive is posted early, where messages need no batch

# --- one half on its tree ----------------------------------------------------------------------------------------


class TreePipeline:
    """One half of the vector on its tree, seen from one rank.

    top: rounds that a chunk takes from the deepest leaf to the root
    """

    def __init__(
        self, tree: Sequence[Node], halves: tuple[Sequence[torch.Tensor], ...], tag: int, group: Any
    ) -> None:
        self.tree, self.node, self.tag, self.group = tree, tree[p2p.rank(group)], tag, group
        self.chunks, self.sums = halves
        self.top = root_level(p2p.size(group))
        # Rounds by which receives are posted before their messages leave.
        self.early = 0 if not self.chunks or p2p.in_batches(self.chunks[0], group) else EARLY
        self.sending: list[Work] = []
        self.slots: dict[int, list[torch.Tensor]] = {}
        self.coming: dict[int, deque[tuple[Work, torch.Tensor]]] = {}  # by rank, in order

    def expected(
        self, now: int, direction: int
    ) -> Iterator[tuple[int, int, TreePipeline, int, int]]:
        """What others send here in a round: (direction, its order there, half, peer, chunk)."""
        above = () if self.node.parent is None else (self.node.parent,)
        for peer in above if direction == DOWN else self.node.children:
            level = self.tree[peer].level
            i = now - 2 * self.top + level if direction == DOWN else now - level
            if 0 <= i < len(self.chunks):
                yield direction, level if direction == UP else -level, self, peer, i

    def receive(self, peer: int, direction: int, i: int) -> None:
        """Posts a receive of chunk i: from a child into a slot, from the parent in place."""
        into = self.chunks[i]
        if direction == UP:
            into = self.slots[peer][i % len(self.slots[peer])][: len(into)]
        work = p2p.irecv(into, peer, self.group, self.tag + direction)
        self.coming.setdefault(peer, deque()).append((work, into))

    def _arrived(self, peer: int) -> torch.Tensor:
        work, into = self.coming[peer].popleft()
        work.wait()
        return into

    def up(self, i: int, reduction: Reduction) -> None:
        """Chunk i: combine the children's with the own, into sums[i]; send it to the parent."""
        mine = self.chunks[i]
        for child in self.node.children:
            mine = reduction.combine(mine, self._arrived(child), out=self.sums[i])
        if self.node.parent is not None:
            self._send(mine, self.node.parent, UP)

    def down(self, i: int) -> None:
        """Chunk i: receive it from the parent (the root has it), send it to the children."""
        if self.node.parent is not None:
            self._arrived(self.node.parent)
        for child in self.node.children:
            self._send(self.chunks[i], child, DOWN)

    def _send(self, chunk: torch.Tensor, dst: int, direction: int) -> None:
        self.sending.append(p2p.isend(chunk, dst, self.group, self.tag + direction))


def _halves(
    x: torch.Tensor,
    trees: Sequence[Sequence[Node]],
    group: Any,
    chunk_bytes: int,
    sums: torch.Tensor | None = None,
) -> list[TreePipeline]:
    """Both halves of x, each on its tree. sums: what to combine into, where that is not x itself."""

    def halves_of(vector: torch.Tensor) -> list[list[torch.Tensor]]:
        halves = blocks_of(vector, even_bounds(len(vector), 2))
        return [chunks_of(half, chunk_bytes) for half in halves]

    mine = halves_of(x)
    both = zip(mine, mine if sums is None else halves_of(sums), strict=True)
    return [TreePipeline(trees[t], half, TAG + 2 * t, group) for t, half in enumerate(both)]


def _slots(halves: Sequence[TreePipeline]) -> None:
    """Where chunks come in from the children, in one piece of scratch: a slot for each round that they lie there."""
    chunks = halves[0].chunks
    if not chunks:  # where the first half is empty, the second is too
        return
    links = [
        (half, c, min(len(chunks), half.node.level - half.tree[c].level + 1 + half.early))
        for half in halves
        for c in half.node.children
    ]
    length = len(chunks[0])
    memory = iter(
        scratch(length * sum(rounds for *_, rounds in links), chunks[0]).split(length)
        if links
        else ()
    )
    for half, child, rounds in links:
        half.slots[child] = [next(memory) for _ in range(rounds)]


# --- the algorithms --------------------------------------------------------------------------------------------


def _timetable(
    halves: Sequence[TreePipeline], *directions: int
) -> Iterator[tuple[int, TreePipeline, int]]:
    """All that this rank has to do, in order: (UP or DOWN, half, chunk).

    In each round a chunk sets out, and those under way go one level further: chunk i leaves level l in round i + l
    going up, and in round i + 2 * top - l coming down. What a rank waits for was sent in an earlier round, so nobody
    waits for itself. Within a round, up is before down; up, the tree in which this rank is a leaf and waits for nobody
    is first; down, the tree in which others wait for this rank.

    A round's messages are one batch on both of their ends, so that no rank's order of posting keeps another's from its
    turn (wire/transport.py): the receives are posted here, in the order of the sends; those by whoever takes the turns.
    Where messages need no batch, the receives are posted some rounds before.
    """
    top, found = halves[0].top, []
    for half in halves:
        level = half.node.level
        for i in range(len(half.chunks)):
            found.append((i + level, UP, level, half, i))
            found.append((i + 2 * top - level, DOWN, -level, half, i))
    turns = deque(sorted((t for t in found if t[1] in directions), key=itemgetter(0, 1, 2)))
    early = halves[0].early
    for now in range(-early, len(halves[0].chunks) + 2 * top + 1):
        with p2p.batch(halves[0].group):
            coming = [
                one
                for half in halves
                for direction in directions
                for one in half.expected(now + early, direction)
            ]
            for direction, _, half, peer, i in sorted(coming, key=itemgetter(0, 1)):
                half.receive(peer, direction, i)
            while turns and turns[0][0] == now:
                _, direction, _, half, i = turns.popleft()
                yield direction, half, i
    for half in halves:
        for work in half.sending:
            work.wait()


def all_reduce_steps(
    x: torch.Tensor, reduction: Reduction, group: Any, chunk_bytes: int = CHUNK_BYTES
) -> None:
    """Each chunk: 1. up its tree, combined on the way; 2. at the root it is complete; 3. down the same tree."""
    halves = _halves(x, two_trees(p2p.size(group)), group, chunk_bytes)
    _slots(halves)
    for direction, half, i in _timetable(halves, UP, DOWN):
        if direction == DOWN:
            half.down(i)
            continue
        half.up(i, reduction)
        if half.node.parent is None:
            reduction.finish(half.chunks[i])


def broadcast_steps(x: torch.Tensor, root: int, group: Any, chunk_bytes: int = CHUNK_BYTES) -> None:
    """The root sends each chunk to the root of its tree; the trees are of all other ranks."""
    for _, half, i in _timetable(_halves(x, _trees_below(root, group), group, chunk_bytes), DOWN):
        half.down(i)


def reduce_steps(
    x: torch.Tensor, root: int, reduction: Reduction, group: Any, chunk_bytes: int = CHUNK_BYTES
) -> None:
    """The same arrows turned round: each tree's root hands its chunks to the root."""
    sums = x if p2p.rank(group) == root else torch.empty_like(x)  # only the root's x may change
    halves = _halves(x, _trees_below(root, group), group, chunk_bytes, sums)
    _slots(halves)
    for _, half, i in _timetable(halves, UP):
        half.up(i, reduction)


def _trees_below(root: int, group: Any) -> list[list[Node]]:
    """Two trees on the p - 1 other ranks, with `root` above the roots of both."""
    ranks = p2p.size(group)
    return [_below(tree, root, ranks) for tree in two_trees(ranks - 1)]


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
