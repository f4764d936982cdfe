"""Many tensors in few messages: flat tensors of one dtype each, filled, averaged over the ranks and copied back.

Local updates move whole models, one tensor after another in the same flat one, so a meeting costs a few large messages
and not one for each parameter. The flat tensors are buckets (parameters/buckets.py), made for a meeting and let go
after it: between meetings they cost no memory.

A mean over p ranks (ring): a rank sends 2 (p - 1) / p of the tensors' bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from dtcourse.parameters.buckets import BYTES, Bucket, assign
from dtcourse.parameters.replicas import Group


def flattened(tensors: Sequence[torch.Tensor]) -> list[Bucket]:
    """Buckets that hold the tensors' values, in an order that is the same on every rank."""
    buckets = assign(tensors, first_bytes=BYTES)
    for bucket in buckets:
        for view, tensor in zip(bucket.gradients(), bucket.parameters(), strict=True):
            view.copy_(tensor.detach())
    return buckets


@torch.no_grad()
def write_back(buckets: Sequence[Bucket]) -> None:
    """Gives the tensors the values that their buckets hold."""
    for bucket in buckets:
        for view, tensor in zip(bucket.gradients(), bucket.parameters(), strict=True):
            tensor.copy_(view)


@torch.no_grad()
def average(buckets: Sequence[Bucket], group: Group = None) -> None:
    """Replaces what the buckets hold by its mean over the ranks: bit for bit the same on all of them."""
    size = dist.get_world_size(group)
    # divided first: the sum of many ranks' float16 numbers may have no float16
    for bucket in buckets:
        bucket.buffer().div_(size)
    sent = [dist.all_reduce(bucket.buffer(), group=group, async_op=True) for bucket in buckets]
    for work in sent:
        work.wait()


def average_tensors(tensors: Sequence[torch.Tensor], group: Group = None) -> None:
    """Replaces each tensor by its mean over the ranks. All ranks pass as many, of the same shapes and dtypes."""
    buckets = flattened(tensors)
    average(buckets, group)
    write_back(buckets)
