"""Whole parameters travel: gradients to their owners, updated values from their owners to everybody.

Buckets go in the order in which they are given, with p of them under way at once: memory for p buckets, not for all of
them, and, where they come by turns of their owners (partition.by_turns), a message of each owner under way.

All ranks together send (p - 1) N elements in either direction (ring).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist

from dtcourse.parameters.buckets import Bucket
from dtcourse.parameters.replicas import Group

UnderWay = tuple[torch.Tensor, dist.Work]


def spread_from_owners(buckets: Iterable[Bucket], group: Group = None) -> None:
    """Gives every rank the owners' values of the tensors in `buckets`. All ranks call it with the same ones."""
    rank = dist.get_rank(group)

    def start(bucket: Bucket) -> UnderWay:
        first = bucket.parameters()[0].detach()
        if len(bucket.parameters()) == 1 and first.is_contiguous():
            flat = first  # written where it lies
        elif bucket.owner == rank:
            flat = torch.cat([p.detach().reshape(-1) for p in bucket.parameters()])
        else:
            flat = bucket.empty()
        return flat, dist.broadcast(flat, group=group, group_src=bucket.owner, async_op=True)

    def end(bucket: Bucket, flat: torch.Tensor) -> None:
        if bucket.owner == rank or flat.data_ptr() == bucket.parameters()[0].data_ptr():
            return
        for parameter, value in zip(bucket.parameters(), bucket.views(flat), strict=True):
            parameter.detach().copy_(value)

    _some_at_once(buckets, dist.get_world_size(group), start, end)


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
        return flat, dist.reduce(flat, group=group, group_dst=bucket.owner, async_op=True)

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
    under_way: deque[tuple[Bucket, torch.Tensor, dist.Work]] = deque()

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
