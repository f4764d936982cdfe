"""What a mesh layout sends: from one layout of a tensor to another, and over a step of a chain of products.

    redistribute(have, want, sizes, mesh)     # which collectives, over which axis, how many bytes per rank
    step(MLP, {"batch": "data", "hidden": "model"}, sizes, mesh)

Nothing here knows a technique. That the batch along an axis is data parallelism, the hidden dim along it Megatron's
tensor parallelism, and both together 2-D, comes out: a product's sum over a divided dim is partial, and the layout
that is wanted of it says whether that is an all-reduce or a reduce-scatter (mesh_layouts.py; papers there).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dtcourse.simulator.collective_cost import BUS_FACTORS
from dtcourse.simulator.mesh_layouts import Layout, Mesh, Sizes, by_rules, contract

# What makes less first, then what keeps the size, then what makes more.
ORDER = ("", "reduce_scatter", "all_to_all", "all_reduce", "all_gather")


@dataclass(frozen=True)
class Collective:
    """kind: all_reduce, reduce_scatter, all_gather or all_to_all; axis: over whose groups

    sent: bytes that each rank sends, by a ring (all_to_all: directly)
    """

    kind: str
    axis: str
    sent: float


def redistribute(
    have: Layout, want: Layout, sizes: Sizes, mesh: Mesh, element: int = 4
) -> list[Collective]:
    """The collectives that make one layout of a tensor the other, in an order in which no dim is divided twice.

    element: bytes of one element

    Raises ValueError for other dims, or where `want` is partial over an axis and `have` is not.
    """
    if have.dims != want.dims:
        raise ValueError(f"{have} and {want} are not the same tensor")
    if more := want.partial - have.partial:
        raise ValueError(f"{have} is not a part of a sum over {', '.join(sorted(more))}")
    found, now = [], have
    while now != want:
        changing = [axis for axis in mesh if _along(now, axis) != _along(want, axis)]
        steps = [step for axis in changing if (step := _change(now, want, axis))]
        # Axes that exchange their dims wait for each other: one gathers its dim, and divides the other one later.
        kind, axis, after = (
            min(steps, key=lambda step: ORDER.index(step[0]))
            if steps
            else ("all_gather", changing[0], _with(now, changing[0], None))
        )
        if kind:
            held = element * math.prod(now.local_shape(sizes, mesh))
            found.append(Collective(kind, axis, sent(kind, held, mesh[axis])))
        now = after
    return found


def _along(layout: Layout, axis: str) -> tuple[str | None, bool]:
    return layout.along(axis), axis in layout.partial


def _with(layout: Layout, axis: str, dim: str | None) -> Layout:
    """The layout with this dim, and no sum, along this axis."""
    axes = [None if held == axis else held for held in layout.axes]
    if dim is not None:
        axes[layout.dims.index(dim)] = axis
    return Layout(layout.dims, tuple(axes), layout.partial - {axis})


def _change(now: Layout, want: Layout, axis: str) -> tuple[str, str, Layout] | None:
    """(the collective, if any, the axis, the layout after it); None where another axis still holds the wanted dim."""
    before, after = now.along(axis), want.along(axis)
    if after is not None and now.axis_of(after) is not None:
        return None
    if axis in now.partial:
        kind = "reduce_scatter" if after else "all_reduce"
    elif before:
        kind = "all_to_all" if after else "all_gather"
    else:
        kind = ""  # every rank has all, and keeps a part
    return kind, axis, _with(now, axis, after)


def sent(kind: str, held: float, ranks: int) -> float:
    """Bytes that each rank sends. held: its bytes before the collective."""
    whole = held * ranks if kind == "all_gather" else held
    return whole * BUS_FACTORS[kind](ranks)


@dataclass(frozen=True)
class Product:
    """y = x w: the names of the dims of each; what is in x and w and not in y is summed over."""

    name: str
    x: tuple[str, ...]
    w: tuple[str, ...]
    y: tuple[str, ...]


@dataclass(frozen=True)
class Sent:
    """One collective of a step. tensor: "y", "dx" or "dw" of a product; layout: of that before it."""

    product: str
    tensor: str
    layout: Layout
    collective: Collective


def step(
    products: Sequence[Product],
    rules: Mapping[str, str],
    sizes: Sizes,
    mesh: Mesh,
    element: int = 4,
) -> list[Sent]:
    """What a chain of products sends forward and backward where all tensors have the layout of the rules.

    Backward, dx is the product of dy and w, and dw that of x and dy: the same rule says what each sends. The input of
    the first product needs no gradient.
    """
    found = []

    def send(product: Product, tensor: str, left: str, right: str, out: str) -> None:
        dims = getattr(product, out)
        have = contract(
            by_rules(getattr(product, left), rules), by_rules(getattr(product, right), rules), dims
        )
        for each in redistribute(have, by_rules(dims, rules), sizes, mesh, element):
            found.append(Sent(product.name, tensor, have, each))

    for product in products:
        send(product, "y", "x", "w", "y")
    for product in reversed(products):
        if product is not products[0]:
            send(product, "dx", "y", "w", "x")
        send(product, "dw", "x", "y", "w")
    return found
