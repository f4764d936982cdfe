"""Layouts by named dims, held against DTensor's own placements, local shapes, values and counted collectives."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from dtcourse import launch
from dtcourse.simulator.mesh_layouts import Layout, by_rules, contract, elementwise
from dtcourse.simulator.mesh_traffic import Product, redistribute, sent, step

MESH = {"data": 2, "model": 2}
SIZES = {"b": 4, "d": 8, "h": 12}
KINDS = {
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
}


def layouts(dims, partial=True):
    """Every layout of these dims on MESH."""
    for places in itertools.product([*dims, None, "+"] if partial else [*dims, None], repeat=2):
        along = dict(zip(MESH, places, strict=True))
        named = [place for place in places if place in dims]
        if len(set(named)) == len(named):
            axes = tuple(next((a for a, d in along.items() if d == dim), None) for dim in dims)
            yield Layout(dims, axes, frozenset(a for a, d in along.items() if d == "+"))


def products():
    """Every pair of layouts of x [b, d] and w [d, h] that can be multiplied where they lie, and their product's."""
    for x, w in itertools.product(layouts(("b", "d")), layouts(("d", "h"))):
        try:
            yield x, w, contract(x, w, ("b", "h"))
        except ValueError:
            continue


def lay(whole, layout, mesh):
    """A DTensor of this layout: where it is partial, its first rank along the axis has it all, and the others 0."""
    plain = Layout(layout.dims, layout.axes)
    local = distribute_tensor(whole, mesh, plain.placements(MESH)).to_local()
    for axis in layout.partial:
        local = local * (mesh.get_local_rank(axis) == 0)
    return DTensor.from_local(
        local,
        mesh,
        layout.placements(MESH),
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


def counted(comm):
    """{kind: calls} of what CommDebugMode has seen."""
    return Counter({KINDS[str(op).split(".")[-1]]: n for op, n in comm.get_comm_counts().items()})


def test_products_have_the_layouts_of_dtensor_and_need_no_message():
    """All pairs that we call possible: DTensor multiplies them in place, to what we say, with our shapes."""
    found = list(products())
    assert len(found) > 20

    def run():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=tuple(MESH))
        torch.manual_seed(0)
        x = torch.randn(4, 8, dtype=torch.float64)
        w = torch.randn(8, 12, dtype=torch.float64)
        told = []
        for left, right, _ in found:
            a, b = lay(x, left, mesh), lay(w, right, mesh)
            with CommDebugMode() as comm:
                y = a @ b
            error = (y.full_tensor() - x @ w).abs().max().item()
            told.append((y.placements, tuple(y.to_local().shape), comm.get_total_counts(), error))
        return told

    for (left, right, out), (placements, shape, calls, error) in zip(
        found, launch(run, 4, device="cpu")[3], strict=True
    ):
        where = f"{left} times {right}"
        assert placements == out.placements(MESH), where
        assert shape == out.local_shape(SIZES, MESH), where
        assert calls == 0, where
        assert error < 1e-12, where


def test_what_is_refused_needs_messages_in_dtensor_or_is_no_product():
    """Where a dim lies differently in the two, or both are divided by other dims, DTensor sends something first.

    Except that it divides a whole tensor for nothing: x whole along an axis by whose dim d w is divided.
    """
    refused = []
    for x, w in itertools.product(layouts(("b", "d"), False), layouts(("d", "h"), False)):
        try:
            contract(x, w, ("b", "h"))
        except ValueError:
            refused.append((x, w))
    sends = [
        any(x.along(a) and w.along(a) and x.along(a) != w.along(a) for a in MESH)
        for x, w in refused
    ]
    assert any(sends)
    assert not all(sends)

    def run():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=tuple(MESH))
        told = []
        for left, right in refused:
            a, b = lay(torch.ones(4, 8), left, mesh), lay(torch.ones(8, 12), right, mesh)
            with CommDebugMode() as comm:
                a @ b
            told.append(comm.get_total_counts())
        return told

    for (left, right), calls, must in zip(
        refused, launch(run, 4, device="cpu")[0], sends, strict=True
    ):
        assert calls > 0 or not must, f"{left} times {right}"


def test_redistribution_is_dtensors():
    """From every layout to every one that is no sum: the same values, and on one axis the same collective."""
    pairs = list(itertools.product(layouts(("b", "d")), layouts(("b", "d"), False)))

    def run():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=tuple(MESH))
        whole = torch.arange(32.0).view(4, 8)
        told = []
        for have, want in pairs:
            given = lay(whole, have, mesh)
            with CommDebugMode() as comm:
                got = given.redistribute(mesh, want.placements(MESH))
            assert torch.equal(got.full_tensor(), whole)
            told.append((counted(comm), tuple(got.to_local().shape)))
        return told

    alone = 0
    for (have, want), (calls, shape) in zip(pairs, launch(run, 4, device="cpu")[3], strict=True):
        told = redistribute(have, want, SIZES, MESH)
        assert shape == want.local_shape(SIZES, MESH)
        changed = [
            axis for axis in MESH
            if (have.along(axis), axis in have.partial) != (want.along(axis), axis in want.partial)
        ]  # fmt: skip
        if len(changed) == 1:
            alone += 1
            # on CPUs DTensor has an all-gather in the place of an all-to-all, and drops what is not its own
            ours = Counter("all_gather" if s.kind == "all_to_all" else s.kind for s in told)
            assert ours == calls, f"{have} to {want}"
        assert {each.axis for each in told} <= set(changed)
    assert alone > 20


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"])
def test_bytes_are_those_that_our_collectives_send(kind):
    """Counted message by message, of 4 ranks with 48 floats each."""

    def run():
        x = torch.ones(48)
        if kind == "all_reduce":
            dist.all_reduce(x)
        elif kind == "reduce_scatter":
            dist.reduce_scatter(torch.empty(12), list(x.chunk(4)))
        elif kind == "all_gather":
            dist.all_gather([torch.empty(48) for _ in range(4)], x)
        else:
            dist.all_to_all_single(torch.empty(48), x)

    traffic = launch(run, 4, backend="ring", device="cpu", record=True).traffic
    assert traffic.bytes_sent(rank=0) == sent(kind, 4 * 48, 4)


MLP = [
    Product("in", ("b", "d"), ("d", "h"), ("b", "h")),
    Product("out", ("b", "h"), ("h", "d"), ("b", "d")),
]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"b": "data"}, {("in", "dw", "data"), ("out", "dw", "data")}),
        ({"h": "model"}, {("out", "y", "model")}),
        (
            {"b": "data", "h": "model"},
            {("out", "y", "model"), ("in", "dw", "data"), ("out", "dw", "data")},
        ),
        ({"d": "model"}, {("in", "y", "model"), ("out", "dx", "model")}),
        ({}, set()),
    ],
)
def test_a_chain_of_products(rules, expected):
    """Data parallelism averages each weight's gradient; Megatron's sums the output, and the first input's gradient if
    there is a layer before; all are all-reduces."""
    told = step(MLP, rules, SIZES, MESH)
    assert {(each.product, each.tensor, each.collective.axis) for each in told} == expected
    assert {each.collective.kind for each in told} <= {"all_reduce"}


def test_2d_bytes_by_hand():
    """An all-reduce of two ranks sends what each holds once: a layer's output, half of a weight."""
    told = {
        (s.product, s.tensor): s.collective.sent
        for s in step(MLP, {"b": "data", "h": "model"}, SIZES, MESH)
    }
    assert told == {("out", "y"): 4 * 2 * 8, ("in", "dw"): 4 * 8 * 6, ("out", "dw"): 4 * 6 * 8}


def test_nothing_but_what_is_linear_takes_a_part_of_a_sum():
    part = Layout(("b", "h"), ("data", None), frozenset({"model"}))
    assert elementwise([part, part], linear=True) == part
    with pytest.raises(ValueError, match="reduce it first"):
        elementwise([part], linear=False)
    with pytest.raises(ValueError, match="different layouts"):
        elementwise([part, by_rules(("b", "h"), {"b": "data"})], linear=True)


def test_what_cannot_be():
    with pytest.raises(ValueError, match="axis data is used 2 times"):
        by_rules(("b", "h"), {"b": "data", "h": "data"})
    with pytest.raises(ValueError, match="size 12, which the 5 ranks of axis model"):
        by_rules(("d", "h"), {"h": "model"}).local_shape(SIZES, {"model": 5})
    with pytest.raises(ValueError, match=r"d is divided along model in .* and not in"):
        contract(by_rules("bd", {"d": "model"}), by_rules("dh", {}), "bh")
    with pytest.raises(ValueError, match="gather one of them first"):
        contract(by_rules("bd", {"b": "data"}), by_rules("dh", {"h": "data"}), "bh")
    with pytest.raises(ValueError, match="not the same tensor"):
        redistribute(by_rules("bd", {}), by_rules("bh", {}), SIZES, MESH)
    with pytest.raises(ValueError, match="not a part of a sum over model"):
        redistribute(
            by_rules("bd", {}), Layout(("b", "d"), (None, None), frozenset({"model"})), SIZES, MESH
        )
    with pytest.raises(ValueError, match="one axis, or None, for each dim"):
        Layout(("b",), ())


def test_axes_that_exchange_their_dims_gather_one():
    """[b/data, d/model] to [b/model, d/data]: neither axis can divide first."""
    have, want = (
        by_rules("bd", {"b": "data", "d": "model"}),
        by_rules("bd", {"b": "model", "d": "data"}),
    )
    told = redistribute(have, want, SIZES, MESH)
    assert [(each.kind, each.axis) for each in told] == [
        ("all_gather", "data"),
        ("all_to_all", "model"),
    ]


def test_placements_of_a_name():
    assert by_rules(("d", "h"), {"h": "model"}).placements(MESH)[1] == Shard(1)
    assert str(by_rules(("d", "h"), {"h": "model"})) == "[d, h/model]"
