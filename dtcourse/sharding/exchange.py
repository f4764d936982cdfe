"""Whole parameters travel: gradients to their owners, updated values from their owners to everybody.

Buckets go in the order in which they are given, with p of them under way at once: memory for p buckets, not for all of
them, and, where they come by turns of their owners (partition.by_turns), a message of each owner under way.

A message that has one root passes p - 1 ranks in turn. As one piece it would take p - 1 times its own time; cut into
pieces it takes little more than once, for a rank sends a piece on while the next one comes in. NCCL's ring cuts so
itself; here `in_pieces` does, for every backend.

All ranks together send (p - 1) N elements in either direction (ring). A root's own port is idle the while, so a pass
takes as long as N elements at one port, p / (p - 1) times as long as a reduce-scatter of equal parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.distributed as dist

from dtcourse.parameters.buckets import Bucket
from dtcourse.parameters.replicas import Group

PIECES = 16  # the pipeline fills and drains for (p - 2) / 16 of a message's time
PIECE_BYTES = 16 << 10  # smaller pieces would cost more in messages than they save

UnderWay = tuple[torch.Tensor, "Pieces"]


class Pieces:
    """The works of one message's pieces, to wait for as one. `tensor` is what wait() returns."""

    def __init__(self, tensor: torch.Tensor, works: list[dist.Work]) -> None:
        self.tensor, self.works = tensor, works

    def wait(self) -> torch.Tensor:
        """Waits until all pieces are through."""
        for work in self.works:
            work.wait()
        return self.tensor


def in_pieces(flat: torch.Tensor, ranks: int, start: Callable[[torch.Tensor], dist.Work]) -> Pieces:
    """Starts a collective with one root piece by piece, so that its hops overlap.

    flat:  contiguous; cut along its elements, into PIECES pieces, or fewer of PIECE_BYTES
    ranks: of the group; between two there is one hop, and nothing to cut for
    start: starts the collective on one piece, in place, without waiting for it
    """
    elements = flat.view(-1)
    pieces = PIECES if ranks > 2 else 1
    each = max(-(-len(elements) // pieces), PIECE_BYTES // flat.element_size(), 1)
    return Pieces(flat, [start(piece) for piece in elements.split(each)])


def spread_from_owners(buckets: Iterable[Bucket], group: Group = None) -> None:
    """Gives every rank the owners' values of the tensors in `buckets`. All ranks call it with the same ones."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)

    def start(bucket: Bucket) -> UnderWay:
        first = bucket.parameters()[0].detach()
        if len(bucket.parameters()) == 1 and first.is_contiguous():
            flat = first  # written where it lies
        elif bucket.owner == rank:
            flat = torch.cat([p.detach().reshape(-1) for p in bucket.parameters()])
        else:
            flat = bucket.empty()
        send = partial(dist.broadcast, group=group, group_src=bucket.owner, async_op=True)
        return flat, in_pieces(flat, size, send)

    def end(bucket: Bucket, flat: torch.Tensor) -> None:
        if bucket.owner == rank or flat.data_ptr() == bucket.parameters()[0].data_ptr():
            return
        for parameter, value in zip(bucket.parameters(), bucket.views(flat), strict=True):
            parameter.detach().copy_(value)

    _some_at_once(buckets, size, start, end)


def reduce_to_owners(buckets: Iterable[Bucket], group: Group = None) -> None:
    """Leaves the mean of all ranks' gradients in .grad on each tensor's owner, and None
    elsewhere. None counts as zero.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)

    def start(bucket: Bucket) -> UnderWay:
        flat = bucket.empty()
        for parameter, part in zip(bucket.parameters(), bucket.views(flat), strict=True):
            if parameter.grad is None:
                part.zero_()
            else:
                torch.mul(parameter.grad, 1.0 / size, out=part)
            parameter.grad = None
        send = partial(dist.reduce, group=group, group_dst=bucket.owner, async_op=True)
        return flat, in_pieces(flat, size, send)

    def end(bucket: Bucket, flat: torch.Tensor) -> None:
        if bucket.owner == rank:
            for parameter, mean in zip(bucket.parameters(), bucket.views(flat), strict=True):
                parameter.grad = mean

    _some_at_once(buckets, size, start, end)


def _some_at_once(
    buckets: Iterable[Bucket],
    limit: int,
    start: Callable[[Bucket], UnderWay],
    end: Callable[[Bucket, torch.Tensor], None],
) -> None:
    under_way: deque[tuple[Bucket, torch.Tensor, Pieces]] = deque()

    def end_oldest() -> None:
        bucket, flat, work = under_way.popleft()
        work.wait()
        end(bucket, flat)

    for bucket in buckets:
        if len(under_way) == limit:
            end_oldest()
        under_way.append((bucket, *start(bucket)))
    while under_way:
        end_oldest()
