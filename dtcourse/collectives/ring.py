"""The ring: each rank sends to its right neighbour and receives from its left one, and all links work all the time.

Picture for all_reduce on p ranks. Cut the vector into p blocks.

    reduce-scatter   p - 1 steps. Block b starts at rank b + 1 and travels right; each rank that it passes adds its own
                     part. It ends at rank b, complete. In each step every rank sends one block and adds one.
    all-gather       p - 1 steps. The complete blocks travel on round the ring, and each rank keeps a copy.

Per rank: 2 (p - 1) messages, 2 (p - 1)/p n elements sent and as many received, whatever p is: no algorithm can send
less (Patarasuk and Yuan). The price is latency: 2 (p - 1) messages one after the other.
Pipelining: blocks larger than `chunk_bytes` travel as several messages, so a rank adds one chunk while the next comes
in.
Memory: at most two chunks of scratch to receive into while adding; all-gather receives straight into place.

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
from dtcourse.collectives.ring_steps import AHEAD, Steps
from dtcourse.collectives.wire.channel import Channel

# Small chunks keep the pipeline full, large ones cost fewer messages; on a laptop's loopback large ones win.
CHUNK_BYTES = 4 << 20

# --- the two phases --------------------------------------------------------------------------------------------


def reduce_scatter_phase(
    chunks: Sequence[Sequence[torch.Tensor]], reduction: Reduction, end: Channel
) -> list[Work]:
    """p - 1 steps, after which block `rank` is complete. Returns what is still being sent.

    chunks: chunks[b] are the chunks of block b, views of the vector; the other blocks end as partial sums
    """
    # Block rank - 1 sets out from here; to each chunk that comes in, add this rank's part.
    steps = Steps(chunks, end.rank - 1, end, TAG, in_place=False)
    for mine, partial_sum in steps.run():
        reduction.combine(partial_sum, mine, out=mine)
    return steps.sending


def all_gather_phase(
    chunks: Sequence[Sequence[torch.Tensor]], end: Channel, steps: Steps | None = None
) -> list[Work]:
    """p - 1 steps, before which block `rank` is complete, and after which all are. Returns what is still being sent.

    steps: a Steps made earlier, whose first receives are posted
    """
    steps = steps or Steps(chunks, end.rank, end, TAG + 1, in_place=True)
    for _ in steps.run():  # the own block sets out from here; what comes in is complete
        pass
    return steps.sending


def reduce_scatter_steps(
    vector: torch.Tensor,
    bounds: Sequence[int],
    reduction: Reduction,
    group: Any,
    chunk_bytes: int = CHUNK_BYTES,
) -> None:
    """The first phase alone: block `rank` of the vector ends complete; the others hold partial sums."""
    chunks = _chunks(vector, bounds, chunk_bytes)
    wait_all(reduce_scatter_phase(chunks, reduction, p2p.channel(group)))


def all_gather_steps(
    vector: torch.Tensor, bounds: Sequence[int], group: Any, chunk_bytes: int = CHUNK_BYTES
) -> None:
    """The second phase alone: block `rank` is there before, all blocks after."""
    wait_all(all_gather_phase(_chunks(vector, bounds, chunk_bytes), p2p.channel(group)))


def all_reduce_steps(
    x: torch.Tensor, reduction: Reduction, group: Any, chunk_bytes: int = CHUNK_BYTES
) -> None:
    """1. Reduce-scatter. 2. All-gather.

    The second phase's first receive may be posted before the first phase begins: a complete block can come only after
    this rank has added its part to it, so its place is free by then.
    """
    end = p2p.channel(group)
    chunks = _chunks(x, even_bounds(len(x), end.size), chunk_bytes)
    gather = Steps(chunks, end.rank, end, TAG + 1, in_place=True)
    sending = reduce_scatter_phase(chunks, reduction, end)
    for chunk in chunks[end.rank]:
        reduction.finish(chunk)
    wait_all(sending + all_gather_phase(chunks, end, gather))


def wait_all(sending: Sequence[Work]) -> None:
    """Waits until all that was sent has gone, so that the vector may change again."""
    for work in sending:
        work.wait()


def _chunks(
    vector: torch.Tensor, bounds: Sequence[int], chunk_bytes: int
) -> list[list[torch.Tensor]]:
    return [chunks_of(block, chunk_bytes) for block in blocks_of(vector, bounds)]


# --- the ring as a chain: one root -----------------------------------------------------------------------------


def broadcast_steps(x: torch.Tensor, root: int, group: Any, chunk_bytes: int = CHUNK_BYTES) -> None:
    """The chunks travel from the root to its right, ... , to its left neighbour:
    all links work once they are on the way.
    """
    rank, ranks = p2p.rank(group), p2p.size(group)
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    if ranks == 1:
        return
    chunks: Sequence[torch.Tensor] | Iterator[torch.Tensor] = chunks_of(x, chunk_bytes)
    if rank != root:
        chunks = receive_stream(chunks, left, group, TAG, AHEAD)
    sending = [p2p.isend(c, right, group, TAG) if right != root else None for c in chunks]
    wait_all([work for work in sending if work is not None])


def reduce_steps(
    x: torch.Tensor, root: int, reduction: Reduction, group: Any, chunk_bytes: int = CHUNK_BYTES
) -> None:
    """The chunks travel from the root's right neighbour round to the root; each rank on the way adds its part."""
    rank, ranks = p2p.rank(group), p2p.size(group)
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    if ranks == 1:
        return
    chunks = chunks_of(x, chunk_bytes)
    if left == root:  # the first of the chain
        sums = chunks
    else:
        sums = chunks_of(x if rank == root else torch.empty_like(x), chunk_bytes)
        arrived = receive_stream(_slots(chunks), left, group, TAG, AHEAD)
    sending = []
    for i, mine in enumerate(chunks):
        if left != root:
            reduction.combine(next(arrived), mine, out=sums[i])
        if rank != root:
            sending.append(p2p.isend(sums[i], right, group, TAG))
    wait_all(sending)


def _slots(chunks: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Scratch to receive these chunks into: AHEAD slots, used in turn."""
    if not chunks:
        return iter(())
    return in_slots(chunks, scratch(AHEAD * max(len(c) for c in chunks), chunks[0]), AHEAD)


# --- what a rank sends -----------------------------------------------------------------------------------------


def reduce_scatter_volume(
    elements: int, ranks: int, rank: int, itemsize: int = 4, chunk_bytes: int = CHUNK_BYTES
) -> Volume:
    """Every block but the own: (p - 1)/p n elements, in p - 1 messages where a block is one chunk."""
    return _blocks(elements, ranks, rank, itemsize, chunk_bytes)


def all_gather_volume(
    elements: int, ranks: int, rank: int, itemsize: int = 4, chunk_bytes: int = CHUNK_BYTES
) -> Volume:
    """Every block but the right neighbour's: (p - 1)/p n elements, in p - 1 messages where a block is one chunk."""
    return _blocks(elements, ranks, (rank + 1) % ranks, itemsize, chunk_bytes)


def all_reduce_volume(
    elements: int, ranks: int, rank: int, itemsize: int = 4, chunk_bytes: int = CHUNK_BYTES
) -> Volume:
    """2 (p - 1)/p n elements, in 2 (p - 1) messages where a block is one chunk."""
    options = (elements, ranks, rank, itemsize, chunk_bytes)
    return reduce_scatter_volume(*options) + all_gather_volume(*options)


def broadcast_volume(
    elements: int,
    ranks: int,
    rank: int,
    root: int = 0,
    itemsize: int = 4,
    chunk_bytes: int = CHUNK_BYTES,
) -> Volume:
    """Sends n elements from each rank but the last of the chain."""
    last = (rank + 1) % ranks == root
    return Volume(0, 0) if last else Volume(chunk_count(elements, itemsize, chunk_bytes), elements)


def reduce_volume(
    elements: int,
    ranks: int,
    rank: int,
    root: int = 0,
    itemsize: int = 4,
    chunk_bytes: int = CHUNK_BYTES,
) -> Volume:
    """Sends n elements from each rank but the root."""
    if rank == root:
        return Volume(0, 0)
    return Volume(chunk_count(elements, itemsize, chunk_bytes), elements)


def _blocks(elements: int, ranks: int, without: int, itemsize: int, chunk_bytes: int) -> Volume:
    bounds = even_bounds(elements, ranks)
    sizes = [b - a for a, b in pairwise(bounds)]
    return add_up(
        Volume(chunk_count(size, itemsize, chunk_bytes), size)
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
