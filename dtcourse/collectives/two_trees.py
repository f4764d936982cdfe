"""Two binary trees on the same ranks, in which a rank that passes things on in one is a leaf in the other (where their
number is odd, rank 0 is not: it has one child in each).

The picture, and what they are for: double_tree.py. The shape is the one that NCCL uses, read off the bits of a rank's
number (Sanders, Speck and Traeff 2009).
"""

from __future__ import annotations

from typing import NamedTuple


class Node(NamedTuple):
    """A rank's place in one tree: its parent (None for the root), its children, at most two, and its level.

    level: 0 for a leaf; a parent's is above its children's
    """

    parent: int | None
    children: tuple[int, ...]
    level: int = 0


def two_trees(ranks: int) -> tuple[list[Node], list[Node]]:
    """The two trees: a Node for each rank, twice.

    The second is the first with the ranks renumbered: mirrored where p is even, moved by one where it is odd. In the
    first tree all odd ranks are leaves, and odd and even change places; only of an odd number of ranks the last, which
    is even, becomes rank 0.
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
