"""Mesh layouts: which dim of each tensor lies along which axis of the mesh, and which collectives follow from it.

    rules = {"batch": "data", "hidden": "model"}            # Mesh TensorFlow: names of dims to axes of the mesh
    x = by_rules(("batch", "model_dim"), rules)             # GSPMD: an axis, or none, for each dim of a tensor
    x.placements(mesh)                                      # DTensor: Shard, Replicate or Partial for each axis

Three notations of one thing. A product of tensors whose layouts agree needs no message: each rank multiplies what it
has. Where the dim that is summed over lies along an axis, each rank's result is a part of the sum (`partial`), and
to use it is to reduce it over that axis. mesh_traffic.py derives from this alone what a step sends.

One axis holds one dim of a tensor, and one dim lies along one axis, as in Mesh TensorFlow; GSPMD and DTensor can also
divide a dim by two axes.

Papers: Mesh TensorFlow (Shazeer et al. 2018, arXiv:1811.02084), GSPMD (Xu et al. 2021, arXiv:2105.04663).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch.distributed.tensor import Partial, Placement, Replicate, Shard

Mesh = Mapping[str, int]  # the size of each axis, in the mesh's order
Sizes = Mapping[str, int]  # the size of each dim, of the whole tensor


@dataclass(frozen=True)
class Layout:
    """How a tensor lies on a mesh.

    dims:    names of its dims
    axes:    for each dim the axis along which it is divided, or None
    partial: axes whose ranks each hold a summand; the tensor is the sum over them
    """

    dims: tuple[str, ...]
    axes: tuple[str | None, ...]
    partial: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if len(self.dims) != len(self.axes):
            raise ValueError(
                f"one axis, or None, for each dim; got {len(self.axes)} for {len(self.dims)}"
            )
        used = [axis for axis in (*self.axes, *self.partial) if axis is not None]
        for axis in used:
            if used.count(axis) > 1:
                raise ValueError(
                    f"axis {axis} is used {used.count(axis)} times by {self}: an axis holds one dim of a tensor, "
                    "or parts of its sum"
                )

    def __str__(self) -> str:
        dims = ", ".join(
            f"{dim}/{axis}" if axis else dim for dim, axis in zip(self.dims, self.axes, strict=True)
        )
        return f"[{dims}]" + "".join(f" partial over {axis}" for axis in sorted(self.partial))

    def along(self, axis: str) -> str | None:
        """The dim that is divided along this axis."""
        return dict(zip(self.axes, self.dims, strict=True)).get(axis)

    def axis_of(self, dim: str) -> str | None:
        """The axis along which this dim is divided."""
        return dict(zip(self.dims, self.axes, strict=True))[dim]

    def local_shape(self, sizes: Sizes, mesh: Mesh) -> tuple[int, ...]:
        """What one rank holds. ValueError where an axis does not divide the dim."""
        shape = []
        for dim, axis in zip(self.dims, self.axes, strict=True):
            ranks = mesh[axis] if axis else 1
            if sizes[dim] % ranks:
                raise ValueError(
                    f"{dim} has size {sizes[dim]}, which the {ranks} ranks of axis {axis} do not divide"
                )
            shape.append(sizes[dim] // ranks)
        return tuple(shape)

    def placements(self, mesh: Mesh) -> tuple[Placement, ...]:
        """The same in DTensor's notation: a placement for each axis of the mesh."""
        found: list[Placement] = []
        for axis in mesh:
            dim = self.along(axis)
            if dim is not None:
                found.append(Shard(self.dims.index(dim)))
            else:
                found.append(Partial() if axis in self.partial else Replicate())
        return tuple(found)


def by_rules(dims: Sequence[str], rules: Mapping[str, str]) -> Layout:
    """The layout that Mesh TensorFlow's rules give a tensor: each named dim along the axis of its rule.

    Raises ValueError where two dims of the tensor have the same axis.
    """
    return Layout(tuple(dims), tuple(rules.get(dim) for dim in dims))


def contract(left: Layout, right: Layout, out: Sequence[str]) -> Layout:
    """The layout of a product, sum over all dims that are not in `out`, if every rank multiplies what it has.

    Raises ValueError where that would not be the product: a dim of both along another axis in each, an axis along
    which they have different dims that are not in the other, or two partial sums multiplied.
    """
    partial = set(left.partial | right.partial)
    for axis in [axis for axis in {*left.axes, *right.axes, *partial} if axis is not None]:
        _require_product(left, right, axis)
        summed = left.along(axis) or right.along(axis)
        if summed is not None and summed not in out:
            partial.add(axis)
    axes = [
        next((each.axis_of(dim) for each in (left, right) if dim in each.dims), None) for dim in out
    ]
    return Layout(tuple(out), tuple(axes), frozenset(partial))


def _require_product(left: Layout, right: Layout, axis: str) -> None:
    mine, theirs = left.along(axis), right.along(axis)
    if axis in left.partial | right.partial:
        both = axis in left.partial and axis in right.partial
        if both or mine or theirs:
            raise ValueError(
                f"{left} times {right}: a product of parts of a sum over {axis} is no part of the product; "
                "reduce one of them first"
            )
        return
    for dim, one, other in ((mine, left, right), (theirs, right, left)):
        if dim is not None and dim in other.dims and other.axis_of(dim) != axis:
            raise ValueError(
                f"{left} times {right}: {dim} is divided along {axis} in {one} and not in {other}; divide both"
            )
    if mine and theirs and mine != theirs:
        raise ValueError(
            f"{left} times {right}: along {axis} one is divided by {mine}, the other by {theirs}; "
            "each rank would have one block of the product, and nobody the rest: gather one of them first"
        )


def elementwise(layouts: Sequence[Layout], *, linear: bool) -> Layout:
    """The layout of a function of tensors of one shape, element by element, if every rank applies it to what it has.

    linear: a sum, or a product with a number. Nothing else of parts of a sum is a part of the result.

    Raises ValueError where the layouts differ, or something that is not linear is asked of a partial sum.
    """
    first = layouts[0]
    for other in layouts[1:]:
        if other != first:
            raise ValueError(f"{first} and {other} are different layouts: redistribute one of them")
    if first.partial and not linear:
        raise ValueError(
            f"{first} is a part of a sum on each rank, and a function of the parts is no part of the function of the "
            "sum: reduce it first"
        )
    return first
