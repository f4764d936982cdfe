"""The ring: each rank sends to its right neighbour and receives from its left one, and all links work all the time.

Picture for all_reduce on p ranks. Cut the vector into p blocks.

    reduce-scatter   p - 1 steps. Block b starts at rank b + 1 and travels right; each rank that it passes adds its own
                     part. It ends at rank b, complete. In each step every rank sends one block and adds one.
    all-gather       p - 1 steps. The complete blocks travel on round the ring, and each rank keeps a copy.

Per rank: 2 (p - 1) messages, 2 (p - 1)/p n elements sent and as many received, whatever p is: no algorithm can send
less (Patarasuk and Yuan). The price is latency: 2 (p - 1) messages one after the other.
Pipelining: blocks larger than `chunk_bytes` travel as several messages, so a rank adds one chunk while the next comes in.
Memory: two chunks of scratch to receive into while adding; all-gather receives straight into place.

Paper: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

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
    scratch,
    total,
)
from dtcourse.collectives.reduce_ops import Reduction

# Small chunks keep the pipeline full, large ones cost fewer messages; on a laptop's loopback large ones win.
CHUNK_BYTES = 4 << 20
AHEAD = 2  # receives posted at a time

# --- the two phases --------------------------------------------------------------------------------------------


def reduce_scatter_steps(
    vector: torch.Tensor,
    bounds: Sequence[int],
    reduction: Reduction,
    group: Any,
    chunk_bytes: int = CHUNK_BYTES,
) -> None:
    """Takes p - 1 steps, after which block `rank` of the vector is complete; the others hold partial sums."""
    _Ring(vector, bounds, group, chunk_bytes).reduce_scatter(reduction).wait()


def all_gather_steps(
    vector: torch.Tensor, bounds: Sequence[int], group: Any, chunk_bytes: int = CHUNK_BYTES
) -> None:
    """Takes p - 1 steps, before which block `rank` is complete, and after which all are."""
    _Ring(vector, bounds, group, chunk_bytes).expect().all_gather().wait()


def all_reduce_steps(
    x: torch.Tensor, reduction: Reduction, group: Any, chunk_bytes: int = CHUNK_BYTES
) -> None:
    """1. Reduce-scatter. 2. All-gather.

    The second phase's receives are posted before the first phase begins: a complete block can come only after this
    rank has added its part to it, so its place is free by then.
    """
    around = _Ring(x, even_bounds(len(x), p2p.size(group)), group, chunk_bytes)
    around.expect().reduce_scatter(reduction)
    for chunk in around.chunks[around.rank]:
        reduction.finish(chunk)
    around.all_gather().wait()


class _Ring:
    """One rank of the ring, and the vector that goes round: `chunks[b]` are the chunks of block b."""

    def __init__(
        self, vector: torch.Tensor, bounds: Sequence[int], group: Any, chunk_bytes: int
    ) -> None:
        self.group, self.rank, self.ranks = group, p2p.rank(group), p2p.size(group)
        self.left, self.right = (self.rank - 1) % self.ranks, (self.rank + 1) % self.ranks
        self.chunks = [cut(block, chunk_bytes) for block in blocks_of(vector, bounds)]
        self._sending: list[Work] = []
        self._gathered: Iterator[torch.Tensor] = iter(())

    def reduce_scatter(self, reduction: Reduction) -> _Ring:
        if self.ranks == 1:
            return self
        # What comes from the left: the block that set out two ranks ago, the one before it, ..., at last the own.
        own = self.chunks[self.rank]
        incoming = self._in_order(first=self.rank - 2)
        arrived = arriving(_slots(incoming), self.left, self.group, TAG, AHEAD)
        # 1. The block that sets out from here is sent as it is.
        for chunk in self.chunks[self.left]:
            self._send(chunk, TAG)
        # 2. To each chunk that comes in, add this rank's part.
        for i, (mine, partial_sum) in enumerate(zip(incoming, arrived, strict=True)):
            reduction.combine(partial_sum, mine, out=mine)
            # 3. Send it on, but for the own block: that has been everywhere and is complete.
            if i < len(incoming) - len(own):
                self._send(mine, TAG)
        return self

    def expect(self) -> _Ring:
        """Posts the first receives of the all-gather, straight into place: the left neighbour's block comes first."""
        if self.ranks > 1:
            incoming = self._in_order(first=self.rank - 1)
            self._gathered = arriving(incoming, self.left, self.group, TAG + 1, AHEAD)
        return self

    def all_gather(self) -> _Ring:
        if self.ranks == 1:
            return self
        # 1. Send the own block.
        for chunk in self.chunks[self.rank]:
            self._send(chunk, TAG + 1)
        # 2. Send on whatever comes, but for the last block: it is the right neighbour's own.
        on = sum(map(len, self.chunks)) - len(self.chunks[self.rank]) - len(self.chunks[self.right])
        for i, chunk in enumerate(self._gathered):
            if i < on:
                self._send(chunk, TAG + 1)
        return self

    def wait(self) -> None:
        """Waits until all that was sent has gone, so that the vector may change again."""
        for work in self._sending:
            work.wait()

    def _in_order(self, first: int) -> list[torch.Tensor]:
        """The chunks of p - 1 blocks: `first`, and those before it on the ring."""
        blocks = [(first - step) % self.ranks for step in range(self.ranks - 1)]
        return [chunk for block in blocks for chunk in self.chunks[block]]

    def _send(self, chunk: torch.Tensor, tag: int) -> None:
        self._sending.append(p2p.isend(chunk, self.right, self.group, tag))


# --- the ring as a chain: one root -----------------------------------------------------------------------------


def broadcast_steps(x: torch.Tensor, root: int, group: Any, chunk_bytes: int = CHUNK_BYTES) -> None:
    """The chunks travel from the root to its right, ... , to its left neighbour: all links work once they are on the way."""
    rank, ranks = p2p.rank(group), p2p.size(group)
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    if ranks == 1:
        return
    chunks: Sequence[torch.Tensor] | Iterator[torch.Tensor] = cut(x, chunk_bytes)
    if rank != root:
        chunks = arriving(chunks, left, group, TAG, AHEAD)
    sending = [p2p.isend(c, right, group, TAG) if right != root else None for c in chunks]
    for work in filter(None, sending):
        work.wait()


def reduce_steps(
    x: torch.Tensor, root: int, reduction: Reduction, group: Any, chunk_bytes: int = CHUNK_BYTES
) -> None:
    """The chunks travel from the root's right neighbour round to the root; each rank on the way adds its part."""
    rank, ranks = p2p.rank(group), p2p.size(group)
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    if ranks == 1:
        return
    chunks = cut(x, chunk_bytes)
    if left == root:  # the first of the chain
        sums = chunks
    else:
        sums = cut(x if rank == root else torch.empty_like(x), chunk_bytes)
        arrived = arriving(_slots(chunks), left, group, TAG, AHEAD)
    sending = []
    for i, mine in enumerate(chunks):
        if left != root:
            reduction.combine(next(arrived), mine, out=sums[i])
        if rank != root:
            sending.append(p2p.isend(sums[i], right, group, TAG))
    for work in sending:
        work.wait()


def _slots(chunks: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Scratch to receive these chunks into: AHEAD slots, used in turn."""
    if not chunks:
        return
    slot = max(len(c) for c in chunks)
    memory = scratch(AHEAD * slot, chunks[0])
    for i, chunk in enumerate(chunks):
        start = i % AHEAD * slot
        yield memory[start : start + len(chunk)]


# --- what a rank sends -----------------------------------------------------------------------------------------


def reduce_scatter_sent(
    elements: int, ranks: int, rank: int, itemsize: int = 4, chunk_bytes: int = CHUNK_BYTES
) -> Sent:
    """Every block but the own: (p - 1)/p n elements, in p - 1 messages where a block is one chunk."""
    return _blocks(elements, ranks, rank, itemsize, chunk_bytes)


def all_gather_sent(
    elements: int, ranks: int, rank: int, itemsize: int = 4, chunk_bytes: int = CHUNK_BYTES
) -> Sent:
    """Every block but the right neighbour's: (p - 1)/p n elements, in p - 1 messages where a block is one chunk."""
    return _blocks(elements, ranks, (rank + 1) % ranks, itemsize, chunk_bytes)


def all_reduce_sent(
    elements: int, ranks: int, rank: int, itemsize: int = 4, chunk_bytes: int = CHUNK_BYTES
) -> Sent:
    """2 (p - 1)/p n elements, in 2 (p - 1) messages where a block is one chunk."""
    options = (elements, ranks, rank, itemsize, chunk_bytes)
    return reduce_scatter_sent(*options) + all_gather_sent(*options)


def broadcast_sent(
    elements: int,
    ranks: int,
    rank: int,
    root: int = 0,
    itemsize: int = 4,
    chunk_bytes: int = CHUNK_BYTES,
) -> Sent:
    """Sends n elements from each rank but the last of the chain."""
    last = (rank + 1) % ranks == root
    return Sent(0, 0) if last else Sent(chunk_count(elements, itemsize, chunk_bytes), elements)


def reduce_sent(
    elements: int,
    ranks: int,
    rank: int,
    root: int = 0,
    itemsize: int = 4,
    chunk_bytes: int = CHUNK_BYTES,
) -> Sent:
    """Sends n elements from each rank but the root."""
    if rank == root:
        return Sent(0, 0)
    return Sent(chunk_count(elements, itemsize, chunk_bytes), elements)


def _blocks(elements: int, ranks: int, without: int, itemsize: int, chunk_bytes: int) -> Sent:
    bounds = even_bounds(elements, ranks)
    sizes = [b - a for a, b in pairwise(bounds)]
    return total(
        Sent(chunk_count(size, itemsize, chunk_bytes), size)
        for block, size in enumerate(sizes)
        if block != without
    )


# --- torch.distributed's calls ---------------------------------------------------------------------------------

all_reduce = forms.all_reduce(all_reduce_steps)
reduce_scatter = forms.reduce_scatter(reduce_scatter_steps)
reduce_scatter_single = forms.reduce_scatter_single(reduce_scatter_steps)
all_gather = forms.all_gather(all_gather_steps)
all_gather_single = forms.all_gather_single(all_gather_steps)
broadcast = forms.broadcast(broadcast_steps)
reduce = forms.reduce(reduce_steps)
