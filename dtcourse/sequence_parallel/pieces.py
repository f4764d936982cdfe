"""Which queries of one rank look at which keys of another: a mask as a list of rectangles, not as a table.

Both ranks hold stretches of the sequence: a chunk or two, cut again where documents end. A query's stretch and a key's
stretch of one document meet in one of three ways:

    the key's is earlier        every query sees every key
    they are the same           a triangle: causal
    the key's is later          nothing is seen, and nothing is computed

Without a causal mask, and inside one document, all is seen. Tokens of document -1 (padding) see nothing and are seen by
nobody: their output is 0 and so are their gradients. Packed documents do not see each other, and what they do not see
costs nothing. No mask is ever made for a rectangle, and there is no offset between ranks that could be wrong: positions
are compared, those of the whole sequence.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

PADDING = -1


class Stretch(NamedTuple):
    """Neighbouring tokens of one document: where a rank holds them, and where the first is in the whole sequence."""

    held: slice
    position: int
    document: int


class Piece(NamedTuple):
    """A rectangle of the table of scores that is computed: rows of queries, columns of keys. causal:
    only its triangle.
    """

    batch: slice
    rows: slice
    columns: slice
    causal: bool


def stretches(
    chunks: tuple[int, ...], length: int, documents_S: Tensor | None = None
) -> list[Stretch]:
    """What a rank holds: `length` tokens in equal chunks, the chunks being numbered along the whole sequence.

    documents_S: each token's document, those of one document being neighbours; below 0: padding, left out
    """
    each = length // len(chunks)
    found = []
    for i, chunk in enumerate(chunks):
        start = i * each
        if documents_S is None:
            found.append(Stretch(slice(start, start + each), chunk * each, 0))
            continue
        ids = documents_S[start : start + each].tolist()
        ends = [j for j in range(1, each) if ids[j] != ids[j - 1]]
        for a, b in pairwise([0, *ends, each]):
            if ids[a] >= 0:
                held = slice(start + a, start + b)
                found.append(Stretch(held, chunk * each + a, ids[a]))
    return found


def visible(
    queries: list[Stretch], keys: list[Stretch], causal: bool, batch: slice = slice(None)
) -> list[Piece]:
    """The rectangles of these queries and keys in which something is seen."""
    return [
        Piece(batch, q.held, k.held, causal and q.position == k.position)
        for q in queries
        for k in keys
        if q.document == k.document and (k.position <= q.position or not causal)
    ]
