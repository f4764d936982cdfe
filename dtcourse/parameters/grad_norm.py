"""The global norm of all gradients, right also where they are spread over ranks, and clipping by it.

|g|^p is a sum over all elements. A rank that holds a part of a gradient knows a part of the sum only, so the parts are
added over the ranks that hold different ones; ranks that hold the same must not be added, or the norm grows by the p-th
root of their number. So each gradient says over which axes it is spread: a replicated one over none, one of ZeRO over
the data axis, one of a tensor-parallel layer in FSDP over two. One all-reduce per axis, of one number for each set of
axes that is there. (Pascanu et al., arXiv 1211.5063, for clipping itself.)
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dtcourse import device
from dtcourse.parameters.placement import local, placement_of
from dtcourse.parameters.replicas import Group

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """Gradients of which each rank holds a part.

    gradients: this rank's, any number of them, none too
    over:      the groups whose ranks hold different parts; () where every rank has the whole
    device:    where the groups' messages are
    """

    gradients: Sequence[torch.Tensor]
    over: tuple[Group, ...]
    device: torch.device


def total_norm(
    spreads: Iterable[Spread], norm_type: float = 2.0, owners: Sequence[Group] = ()
) -> torch.Tensor:
    """The norm of all gradients together: a scalar tensor in float64, the same on every rank. All ranks call it.

    norm_type: 1, 2, ... or inf;  owners: groups whose ranks hold gradients of different parameters
    """
    if not _is_above_zero(norm_type):
        raise ValueError(f"norm_type is a number above 0, or inf; got {norm_type!r}")
    infinite = math.isinf(norm_type)
    op = dist.ReduceOp.MAX if infinite else dist.ReduceOp.SUM
    held: dict[tuple[Group, ...], list[torch.Tensor]] = {}
    where: dict[tuple[Group, ...], torch.device] = {}
    for spread in spreads:
        held.setdefault(spread.over, []).extend(spread.gradients)
        where[spread.over] = spread.device
    sums = {over: _sum_of_powers(held[over], norm_type).to(where[over]) for over in held}
    _reduce_over(sums, {over: over for over in held}, op)
    every = [*sums.values()] or [torch.zeros((), dtype=torch.double)]
    together = torch.stack([s.to(every[0].device) for s in every])
    total = together.max() if infinite else together.sum()
    for group in owners:
        # Of one number, whatever there is on a rank: what its parameters are cut over is not what others' are.
        total = total.to(device.current())
        dist.all_reduce(total, op=op, group=group)
    return total if infinite else total.pow(1.0 / norm_type)


def norms_of_whole(
    parameters: Sequence[torch.Tensor], parts: Iterable[torch.Tensor | None]
) -> list[torch.Tensor]:
    """The 2-norm of each of several tensors as a whole, of which this rank has what it has of a parameter.

    parameters: where the pieces are, each says of itself (placement.py)
    parts:      this rank's of each, such as its gradient; None counts as zeros

    Of what no technique has cut, nothing is sent. Of all else one all-reduce per axis, which all ranks call with the
    same parameters. In float32 at least: in fp16 the norm of a large layer is infinite, that of small gradients 0.
    """
    placed = [placement_of(parameter) for parameter in parameters]
    norms = [_norm(p, part) for p, part in zip(parameters, parts, strict=True)]
    cut = [i for i, p in enumerate(placed) if p.over]
    squares = {i: norms[i].double().square() * placed[i].counts for i in cut}
    _reduce_over(squares, {i: placed[i].over for i in cut}, dist.ReduceOp.SUM)
    for i in cut:
        norms[i] = squares[i].sqrt().to(norms[i].dtype)
    return norms


def _reduce_over(
    numbers: dict[K, torch.Tensor], groups: Mapping[K, tuple[Group, ...]], op: Any
) -> None:
    """Reduces each number over its groups, in place: one all-reduce per group, of all numbers that have it.

    Also on a rank that holds nothing: the others wait for it.
    """
    for group in dict.fromkeys(group for key in numbers for group in groups[key]):
        keys = [key for key in numbers if group in groups[key]]
        together = torch.stack([numbers[key].to(numbers[keys[0]].device) for key in keys])
        dist.all_reduce(together, op=op, group=group)
        for key, number in zip(keys, together, strict=True):
            numbers[key] = number.to(numbers[key].device)


def _norm(parameter: torch.Tensor, part: torch.Tensor | None) -> torch.Tensor:
    wide = torch.promote_types(parameter.dtype, torch.float32)
    if part is None:
        return torch.zeros((), dtype=wide, device=local(parameter).device)
    return torch.linalg.vector_norm(local(part), dtype=torch.promote_types(part.dtype, wide))


def scale_to(
    gradients: Iterable[torch.Tensor],
    norm: torch.Tensor,
    max_norm: float,
    error_if_nonfinite: bool = False,
) -> None:
    """Scales gradients whose norm is `norm` so that it is at most `max_norm`, by the same factor on all ranks."""
    check_max_norm(max_norm)
    if error_if_nonfinite and not torch.isfinite(norm):
        raise RuntimeError(
            f"the gradients' global norm is {norm.item()}: there is nothing to clip to"
        )
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.device, gradient.dtype))


def check_max_norm(max_norm: float) -> None:
    """Whether gradients can be clipped at it; asked before the norm, which is a collective."""
    if not _is_above_zero(max_norm):
        raise ValueError(f"max_norm is a number above 0; got {max_norm!r}")


def _is_above_zero(number: object) -> bool:
    """A tensor of one number is one too, as in PyTorch."""
    if isinstance(number, torch.Tensor):
        return number.numel() == 1 and bool(number > 0)
    return isinstance(number, Real) and not isinstance(number, bool) and float(number) > 0


def _sum_of_powers(gradients: Sequence[torch.Tensor], norm_type: float) -> torch.Tensor:
    """This rank's part of norm ** norm_type (of the maximum, for inf); in float64, so that ranks agree.

    Each gradient's own norm is taken in float32 at least.
    """
    held = [g.detach() for g in gradients if g.numel()]
    if not held:
        return torch.zeros((), dtype=torch.double)
    wide = [torch.promote_types(g.dtype, torch.float32) for g in held]
    norms = [
        torch.linalg.vector_norm(g, norm_type, dtype=t) for g, t in zip(held, wide, strict=True)
    ]
    where = norms[0].device
    together = torch.stack([n.to(where, torch.double) for n in norms])
    return together.max() if math.isinf(norm_type) else together.pow(norm_type).sum()
