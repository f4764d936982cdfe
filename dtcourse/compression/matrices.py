"""What PowerSGD does with matrices: a parameter as one, an orthonormal basis, several in one message."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.parameters.replicas import Group


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a parameter: the first dim, and all others."""
    return (shape[0], math.prod(shape[1:])) if len(shape) else (1, 1)


def orthonormal(columns: Tensor) -> Tensor:
    """An orthonormal basis, (n, r), of what the columns span. One column of zeros stays zero.

    By Householder's reflections: Gram and Schmidt's way, once through, loses its right angles where columns are nearly
    parallel, and counts the same direction twice.
    """
    tiny = torch.finfo(columns.dtype).tiny
    # squares of large or small numbers have no number
    columns = columns / columns.abs().max().clamp_min(tiny)
    if columns.shape[1] == 1:
        return columns / columns.norm().clamp_min(tiny)
    return torch.linalg.qr(columns).Q


def mean_over_ranks(x: Tensor, group: Group) -> Tensor:
    """In place, the mean over the group's ranks of x, all-reduced."""
    x /= dist.get_world_size(group)
    dist.all_reduce(x, group=group)
    return x


def cut(flat: Tensor, begin: int, shapes: Sequence[tuple[int, int]]) -> tuple[Tensor, list[Tensor]]:
    """A flat tensor as a vector of `begin` numbers, and matrices of those shapes behind it."""
    head, *parts = flat.split([begin, *(n * m for n, m in shapes)])
    return head, [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
