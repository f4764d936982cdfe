"""The ring all-reduce on one page: ring.py does the same, in chunks, with receives posted ahead.

Cut the vector into p blocks. In each step every rank sends one block to its right, and receives one from its left.

    reduce-scatter   p - 1 steps. Block b sets out from rank b + 1, each rank adds its own part, and it ends at rank b.
    all-gather       p - 1 steps. The complete blocks travel on round the ring, and each rank keeps a copy.

Messages, bytes and sums are ring.py's, bit for bit, where a block is one chunk. Memory: one block of scratch.
"""

from __future__ import annotations

from typing import Any

import torch

from dtcourse.collectives import forms, p2p
from dtcourse.collectives.reduce_ops import Reduction


@forms.all_reduce
def all_reduce(x: torch.Tensor, reduction: Reduction, group: Any) -> None:
    """Combines all ranks' x, in place on every rank."""
    rank, ranks = p2p.rank(group), p2p.size(group)
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    blocks = x.tensor_split(ranks)  # views of x
    for step in range(1, ranks):  # reduce-scatter: adds to what came, and sends that on
        leaving, mine = blocks[(rank - step) % ranks], blocks[(rank - step - 1) % ranks]
        arrived = torch.empty_like(mine)
        p2p.exchange(leaving, right, arrived, left, group)  # sends and receives at the same time
        reduction.combine(arrived, mine, out=mine)  # for a sum: mine += arrived
    reduction.finish(blocks[rank])  # it is complete; for a mean it is divided here
    for step in range(ranks - 1):  # all-gather: what came is complete, and sent on
        leaving, coming = blocks[(rank - step) % ranks], blocks[(rank - step - 1) % ranks]
        p2p.exchange(leaving, right, coming, left, group)
