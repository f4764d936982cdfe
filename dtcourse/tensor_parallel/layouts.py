"""A tensor laid out otherwise: what each rank has of it, and what each is to have, with its gradient.

A layout is one of torch.distributed.tensor's placements: Replicate(), Shard(dim) or Partial(), of a sum. Tensors stay
plain ones, this rank's part of them, where PyTorch's are DTensors in between; so layouts are taken at their word.

    from / to      Replicate           Shard(dim)                  backward
    Replicate      nothing             own slice                   all-gather
    Shard          all-gather          all-gather, own slice       own slice
    Partial        all-reduce          reduce-scatter              the gradient as it is; all-gather

Bytes: as the collective named (mappings.py); from Shard to Shard an all-to-all would send 1 / p of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from dtcourse.parameters.replicas import Group
from dtcourse.tensor_parallel import mappings

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement


def redistribute(x: Tensor, has: Placement, wanted: Placement, group: Group = None) -> Tensor:
    """x, of which each rank has what `has` says, as `wanted` says; with its gradient.

    Raises ValueError where a dim does not divide, what is wanted is Partial and x is not, or parts make no sum.
    """
    only_sums(has, wanted)
    if _same(x, has, wanted):
        return x
    if wanted.is_partial():
        raise ValueError(f"a tensor laid out as {has} cannot become {wanted}: ask for a Replicate")
    if has.is_partial():
        return summed(x, wanted, group)
    x = replicated(x, has, group)
    return mappings.scatter(x, dim_of(wanted), group) if is_shard(wanted) else x


def replicated(x: Tensor, has: Placement | None, group: Group = None) -> Tensor:
    """x, as `has` says, whole on every rank; None: it is."""
    if is_shard(has):
        return mappings.gather(x, dim_of(has), group)
    return x if has is None or has.is_replicate() else mappings.reduce(x, group)


def summed(x: Tensor, wanted: Placement | None, group: Group = None) -> Tensor:
    """The sum of all ranks' x as `wanted` says; None: Replicate."""
    if is_shard(wanted):
        return mappings.reduce_scatter(x, dim_of(wanted), group)
    return mappings.reduce(x, group)


def is_shard(layout: Placement | None) -> bool:
    """Whether each rank has a slice along a dim."""
    return layout is not None and layout.is_shard()


def dim_of(placement: Any) -> int:
    """The dim that a Shard cuts."""
    return int(placement.dim)


def is_last(x: Tensor, placement: Placement | None) -> bool:
    """Whether it is a Shard of the last dim of x."""
    return is_shard(placement) and dim_of(placement) in (-1, x.dim() - 1)


def _same(x: Tensor, has: Placement, wanted: Placement) -> bool:
    """Shard(-1) is the last dim's, too."""
    if is_shard(has) and is_shard(wanted):
        return dim_of(has) % x.dim() == dim_of(wanted) % x.dim()
    return has == wanted


def no_partial(layout: Placement | None, name: str) -> None:
    """Raises ValueError where a layer was to give parts of a sum."""
    if layout is not None and layout.is_partial():
        raise ValueError(
            f"{name}={layout}: the parts of a sum would be taken for its whole by whatever comes next. Ask for "
            "Replicate(), an all-reduce, or Shard(dim), a reduce-scatter"
        )


def only_sums(*layouts: Any) -> None:
    """Raises ValueError for parts of an average, a maximum or a product: here parts are added up. None is no layout."""
    for layout in layouts:
        if layout is not None and layout.is_partial() and layout.reduce_op != "sum":
            raise ValueError(
                f"{layout!r} says that the parts make their {layout.reduce_op!r}; here they are added up: give "
                "Partial(), the parts of a sum, after dividing them by the number of ranks where their average is meant"
            )


def only_local(use_local: bool) -> None:
    """Raises ValueError where DTensors are asked for."""
    if not use_local:
        raise ValueError(
            "modules here work on plain tensors, this rank's part of each: leave out use_local_output=False "
            "(use_local_input), which asks for DTensors"
        )
