"""Gradients averaged over the axes on which a batch is divided, whatever techniques have cut the parameters.

    average(model, [mesh.get_group("data"), mesh.get_group("expert")])      # between backward and step, on all ranks

The ranks of all axes share the batch, and its loss is the mean of theirs. So each gradient is summed over the axes on
which its parameter is the same on all ranks, and divided by the ranks of all axes. Over an axis on which it is cut
(placement.py) nothing is summed: whoever computes with a piece has the tokens of all ranks that send to it.

Gradients that travel over the same axes lie one after another in buckets, each made when its turn comes: one all-reduce
per bucket and axis. All ranks go through the same sets of axes in the same order, so that none waits for another.

Bytes: an all-reduce of each gradient, on each axis on which it is summed. Memory: one bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtcourse.parameters.backward import check_gradient
from dtcourse.parameters.buckets import BYTES, Bucket, divided
from dtcourse.parameters.cuts import FULL
from dtcourse.parameters.naming import Entry, entries
from dtcourse.parameters.owners import owners_of
from dtcourse.parameters.placement import local
from dtcourse.parameters.replicas import Group


def average(model: nn.Module, groups: Sequence[Group], bucket_bytes: int = BYTES) -> None:
    """Makes each gradient that of the mean of all ranks' losses, in place. All ranks of the groups call it.

    groups:       one for each axis on which the batch is divided
    bucket_bytes: a bucket is closed when it has so many

    A parameter without a gradient counts as zero, since another rank may have one; frozen ones are left alone. What
    full sharding has averaged over an axis by itself is left so.

    A sum over three ranks or more rounds by a gradient's place in its message. Of a tied parameter that ranks of a
    pipeline hold copies of, so, the first copy is averaged alone, and its mean sent to the others: no more bytes.

    Raises ValueError, before anything is changed, for sparse gradients, and for a group in which some ranks hold
    different pieces of a parameter and others the same one.
    """
    owners = owners_of(model)
    apart = owners is not None and any(dist.get_world_size(group) > 2 for group in groups)
    later = owners.later() if owners is not None and apart else ()
    trained = [entry for entry in entries(model) if entry.parameter.requires_grad]
    sums: dict[tuple[tuple[Group, ...], int], list[Entry]] = {}
    for entry in trained:
        if entry.parameter.grad is not None:
            check_gradient(local(entry.parameter.grad), entry.names[0])
        if entry.parameter in later:
            continue
        left = [group for group in groups if not _averaged_by_sharding(entry, group)]
        over = tuple(group for group in left if not _is_cut(entry, group))
        ranks = prod(dist.get_world_size(group) for group in left)
        sums.setdefault((over, ranks), []).append(entry)
    for (over, ranks), held in sums.items():
        over = tuple(group for group in over if dist.get_world_size(group) > 1)
        gradients = [_gradient(entry.parameter) for entry in held]
        sum_together(gradients, over, 1.0 / ranks, bucket_bytes)
    if owners is not None and apart:
        owners.spread()


def sum_together(
    gradients: Sequence[Tensor],
    over: Sequence[Group],
    scale: float = 1.0,
    bucket_bytes: int = BYTES,
) -> None:
    """Scales gradients and sums them over each of the groups, in place and in buckets. All ranks of these call it."""
    if not over and scale == 1.0:  # full sharding has averaged them
        return
    for members in divided(gradients, bytes_each=bucket_bytes):
        _reduce(members, over, scale)


def _reduce(gradients: Sequence[Tensor], over: Sequence[Group], scale: float) -> None:
    """Scales gradients of one dtype and sums them over each of the groups, as one message."""
    if not over or (len(gradients) == 1 and gradients[0].is_contiguous()):  # where they are
        for gradient in gradients:
            gradient.mul_(scale)
        for group in over:
            dist.all_reduce(gradients[0], group=group)
        return
    bucket = Bucket(0, gradients, is_last=True)
    for gradient, view in zip(gradients, bucket.gradients(), strict=True):
        # Divide before the sum, not after: half-precision sums of many ranks would overflow.
        torch.mul(gradient, scale, out=view)
    for group in over:
        dist.all_reduce(bucket.buffer(), group=group)
    for gradient, view in zip(gradients, bucket.gradients(), strict=True):
        gradient.copy_(view)


def _averaged_by_sharding(entry: Entry, group: Group) -> bool:
    """Whether full sharding has averaged the gradient over all ranks of the group."""
    done = [cut.group for cut in entry.placed.cuts if cut.technique == FULL]
    return any(_ranks(other) >= _ranks(group) for other in done)


def _is_cut(entry: Entry, group: Group) -> bool:
    """Whether the ranks of the group hold different pieces of it."""
    for other in entry.placed.over:
        if _ranks(other) == _ranks(group):
            return True
        both = sorted(_ranks(other) & _ranks(group))
        if len(both) > 1:
            raise ValueError(
                f"{entry.names[0]} is cut over ranks {sorted(_ranks(other))}, and its gradient cannot be averaged over "
                f"ranks {sorted(_ranks(group))}: ranks {both} hold different pieces, others the same. Pass the groups "
                "of the mesh that it was cut over, one for each of its axes"
            )
    return False


def _ranks(group: Group) -> set[int]:
    return set(dist.get_process_group_ranks(group))


def _gradient(parameter: nn.Parameter) -> Tensor:
    """This rank's, zeros where there was none."""
    if parameter.grad is None:
        if hasattr(parameter, "make_gradient"):  # of the kind that the parameter's are
            zeros = parameter.make_gradient(torch.zeros_like(local(parameter)))
        else:
            zeros = torch.zeros_like(parameter)
        parameter.grad = zeros
    return local(parameter.grad)
