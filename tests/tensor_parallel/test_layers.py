"""Mappings and single layers: equal to the unsharded layer, forward and backward, in as many messages as they say."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.collectives import autograd, ring, traffic
from dtcourse.parameters.cuts import Sliced
from dtcourse.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    mappings,
)
from dtcourse.tensor_parallel.linear import SharedInput
from dtcourse.torch_private import TorchDispatchMode
from dtcourse.verify import compare
from tests.turns import taking_turns


def close(got, expected, what):
    compare({what: got}, {what: expected}, tolerance=1e-10, what=what, norm=2)


def numbers(*shape, seed=0, requires_grad=True):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, dtype=torch.double, generator=generator)
    return x.requires_grad_(requires_grad)


# --- mappings -----------------------------------------------------------------------------------------------------


def mapped():
    """All four, against what one process computes, where the loss is computed by all ranks alike and counted once."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for dim in (0, 1, -1):
        x, weight = numbers(12, 24, 12), numbers(12, 24, 12, seed=1, requires_grad=False)
        loss = ((mappings.gather(mappings.scatter(x, dim), dim) ** 2) * weight).sum()
        (grad,) = torch.autograd.grad(loss, x)
        close(grad, 2 * x * weight, "scatter and gather")
        mine = mappings.scatter(x, dim)
        assert mine.untyped_storage().nbytes() * size == x.untyped_storage().nbytes(), "no view"
        assert torch.equal(mine, x.chunk(size, dim)[rank])
        assert torch.equal(mappings.gather(mine, dim), x)

    # A region: each rank multiplies x with its own slice of w, and the sum of the parts comes out.
    x, w = numbers(6), numbers(12, 6, seed=1)
    mine = mappings.scatter(w.detach(), 0).requires_grad_()
    for order in range(2):
        inside = torch.tanh(mine @ mappings.copy(x))
        y = mappings.reduce((inside**2).sum())
        grads = torch.autograd.grad(y, [x, mine], create_graph=True)
        expected = torch.autograd.grad((torch.tanh(w @ x) ** 2).sum(), [x, w], create_graph=True)
        if order:  # once more through the backward pass
            grads = torch.autograd.grad(grads[0].square().sum(), [x])
            expected = torch.autograd.grad(expected[0].square().sum(), [x])
        else:
            close(mappings.gather(grads[1], 0), expected[1], "the weight's gradient")
        close(grads[0], expected[0], "x's gradient")

    # collectives.autograd counts the loss of every rank, so the same region's gradients are p times as large.
    for ours in (True, False):
        x, part = numbers(6), numbers(6, seed=rank)
        y = (mappings if ours else autograd).__dict__["reduce" if ours else "all_reduce"](x * part)
        (grad,) = torch.autograd.grad((y**2).sum(), x)
        close(grad / (1 if ours else size), 2 * y.detach() * part, "both conventions")
    with (
        pytest.raises(ValueError, match=r"shape \(5, 7\) .* 7 is not a multiple")
        if size > 1
        else (pytest.raises(ValueError, match="no dim 3"))
    ):
        mappings.scatter(numbers(5, 7), -1 if size > 1 else 3)


@pytest.mark.parametrize(
    "world_size", [1, 3, *taking_turns(2, 4, about="dtcourse/tensor_parallel/")]
)
def test_mappings_and_whose_loss_it_is(world_size):
    launch(mapped, world_size)


def test_shards_with_padding_and_copies_come_together_again():
    def step():
        whole = numbers(10, 3, requires_grad=False)
        assert torch.equal(Sliced(0, 10).join(Sliced(0, 10).cut(whole)), whole)
        twice = Sliced(0, 10, copies=2)
        assert torch.equal(twice.join(twice.cut(whole)), whole)
        few = Sliced(1, 3)
        assert torch.equal(few.join(few.cut(whole)), whole)
        return Sliced(0, 10).used, Sliced(0, 5).used, twice.start, twice.length, few.used

    assert list(launch(step, 4)) == [
        (3, 2, 0, 5, 1),
        (3, 2, 0, 5, 1),
        (3, 1, 5, 5, 1),
        (1, 0, 5, 5, 0),
    ]


# --- layers -------------------------------------------------------------------------------------------------------


def against_the_whole(name, layer, whole, x, cut_input=False, cut_output=False):
    """Output and all gradients of a parallel layer and of the whole one; frozen parameters have none in both."""
    results = []
    for module, parallel in ((layer, True), (whole, False)):
        x_in = x.detach().clone().requires_grad_(x.is_floating_point())
        inside = mappings.scatter(x_in, -1) if parallel and cut_input else x_in
        y = module(inside)
        if parallel and cut_output:
            y = mappings.gather(y, -1)
        (y**3).sum().backward()
        found = {
            n: None
            if p.grad is None
            else module.shards[n].join(p.grad)
            if parallel and n in module.shards
            else p.grad
            for n, p in module.named_parameters()
        }
        results.append(found | {"output": y.detach(), "input": x_in.grad})
    compare(*results, tolerance=1e-10, what=f"{name}: gradient", norm=2)


def layers():
    size, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    for bias in (True, False):
        linear = nn.Linear(12, 24, bias=bias, dtype=torch.double)
        x = numbers(2, 5, 12)
        column = ColumnParallelLinear(linear)
        assert torch.equal(column.weight, linear.weight.chunk(size)[rank]), "it starts as the whole"
        assert column.weight.untyped_storage().nbytes() == 8 * 12 * 24 // size
        against_the_whole("column", column, linear, x, cut_output=True)
        linear.zero_grad()
        against_the_whole("gathered", ColumnParallelLinear(linear, gather_output=True), linear, x)
        linear.zero_grad()
        against_the_whole("row", RowParallelLinear(linear), linear, x, cut_input=True)
        linear.zero_grad()
        row = RowParallelLinear(linear, input_is_parallel=False)
        against_the_whole("row of the whole", row, linear, x)
        uneven = nn.Linear(12, 5, bias=bias, dtype=torch.double)  # padded on 2, 3 and 4 ranks
        padded = ColumnParallelLinear(uneven, gather_output=True)
        against_the_whole("padded", padded, uneven, x)
        assert padded.weight.shape == (-(-5 // size), 12)
    frozen = nn.Linear(12, 24, dtype=torch.double)
    frozen.weight.requires_grad_(False)
    against_the_whole("frozen", ColumnParallelLinear(frozen, gather_output=True), frozen, x)
    against_the_whole("frozen", RowParallelLinear(frozen), frozen, x, cut_input=True)

    tokens = torch.randint(11, (3, 7), generator=torch.Generator().manual_seed(0))
    for padding in (None, 0, 10):
        embedding = nn.Embedding(11, 6, padding_idx=padding, dtype=torch.double)
        with torch.no_grad():
            embedding.weight.normal_()  # padding_idx keeps the gradient away, whatever the row is
        against_the_whole("embedding", VocabParallelEmbedding(embedding), embedding, tokens)
    for wrong in (-1, 11, 12):
        with pytest.raises(IndexError):
            VocabParallelEmbedding(embedding)(torch.tensor([3, wrong]))


@pytest.mark.parametrize(
    "world_size", [1, 3, *taking_turns(2, 4, about="dtcourse/tensor_parallel/")]
)
def test_layers_equal_the_whole_ones(world_size):
    launch(layers, world_size)


def together():
    """Three layers of one input: whatever the order and the inputs they are asked for, as three alone."""
    torch.manual_seed(0)
    wholes = [
        nn.Linear(6, out, bias=b, dtype=torch.double)
        for out, b in ((8, True), (4, True), (2, False))
    ]
    layers = [ColumnParallelLinear(whole) for whole in wholes]
    shared = SharedInput(layers)
    x = numbers(5, 6)

    def outputs(of, x, gathered):
        a, b, c = of
        first = [a(x), c(x), b(x), b(x)]  # one of them twice
        x = x * 2
        rest = [c(x), a(x.detach()), b(x)]  # not the same tensor for all
        return sum((mappings.gather(y) if gathered else y).pow(3).sum() for y in [*first, *rest])

    results = []
    for of, gathered in ((layers, True), (wholes, False)):
        x.grad = None
        outputs(of, x, gathered).backward()
        found = {"x": x.grad}
        for i, layer in enumerate(of):
            for n, p in layer.named_parameters():
                found[f"{i}.{n}"] = layer.shards[n].join(p.grad) if gathered else p.grad
        results.append(found)
    compare(*results, tolerance=1e-10, norm=2)

    with traffic.counting() as counted:
        sum(layer(x).sum() for layer in layers).backward()
    assert shared._input is None, "nothing of the step is kept"
    assert not shared._ready
    y = layers[0](x)
    with torch.no_grad():
        x.add_(1.0)  # the same tensor, and other numbers in it
    assert torch.equal(layers[1](x), layers[1](x.clone())), y
    rank = dist.get_rank()
    return (
        counted.calls(),
        counted.bytes_sent(),
        ring.all_reduce_volume(30, 2, rank, 8).elements * 8,
    )


def test_layers_of_one_input_share_its_gradient_s_all_reduce():
    for calls, sent, expected in launch(together, 2, backend="ring"):
        assert calls == 1
        assert sent == expected


class Order(TorchDispatchMode):
    """What runs, in order: matrix products, and the beginning and end of an all-reduce."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.split("::")[1].rstrip("_")
        if name in ("mm", "addmm"):
            self.seen.append("product")
        return func(*args, **(kwargs or {}))


def overlapped():
    layer = ColumnParallelLinear(nn.Linear(6, 8))
    x = torch.ones(3, 6, requires_grad=True)
    loss = layer(x).sum()
    all_reduce, order = dist.all_reduce, Order()

    def watched(*args, **keywords):
        order.seen.append("begins")
        work = all_reduce(*args, **keywords)

        class Watched:
            def wait(self):
                order.seen.append("waits")
                work.wait()

        return Watched()

    dist.all_reduce = watched
    with order:
        loss.backward()
    return order.seen


def test_the_weight_s_gradient_is_computed_while_the_input_s_travels():
    assert list(launch(overlapped, 2)) == [["product", "begins", "product", "waits"]] * 2


def region():
    """Column, GELU, row: the reductions of a region and their bytes; and half precision by autocast."""
    torch.manual_seed(0)
    up, down = nn.Linear(12, 24), nn.Linear(24, 12)
    wide, narrow = ColumnParallelLinear(copy.deepcopy(up)), RowParallelLinear(copy.deepcopy(down))
    x = torch.randn(5, 12, requires_grad=True)
    with traffic.counting() as counted:
        y = narrow(nn.functional.gelu(wide(x)))
        y.sum().backward()
    with torch.autocast("cpu", torch.bfloat16):
        half = narrow(nn.functional.gelu(wide(x)))
        whole = down(nn.functional.gelu(up(x)))
    (got,) = torch.autograd.grad(half.float().sum(), x)
    (expected,) = torch.autograd.grad(whole.float().sum(), x)
    assert half.dtype == whole.dtype
    torch.testing.assert_close(half, whole, rtol=0.05, atol=0.02)
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)
    phases = {p: counted.calls(phase=p) for p in ("forward", "backward")}
    return phases, counted.calls(operation="all_reduce"), counted.bytes_sent()


@pytest.mark.parametrize("world_size", [1, 3, *taking_turns(2, about="dtcourse/tensor_parallel/")])
def test_a_region_is_one_all_reduce_each_way(world_size):
    for rank, (phases, calls, sent) in enumerate(launch(region, world_size, backend="ring")):
        each = ring.all_reduce_volume(5 * 12, world_size, rank).elements * 4
        assert phases == dict.fromkeys(("forward", "backward"), 1 if world_size > 1 else 0)
        assert calls == sum(phases.values())
        assert sent == 2 * each


def test_a_bias_added_before_the_sum_counts_once_a_rank():
    """Broken on purpose: what the tests above would say to it."""

    class Wrong(RowParallelLinear):
        def forward(self, x):
            return mappings.reduce(nn.functional.linear(x, self.weight, self.bias))

    def step():
        torch.manual_seed(0)
        linear = nn.Linear(12, 24, dtype=torch.double)
        against_the_whole("row", Wrong(linear), linear, numbers(5, 12), cut_input=True)

    with pytest.raises(Exception, match="NotEqual"):
        launch(step, 2)


# --- mistakes -----------------------------------------------------------------------------------------------------


def mistakes():
    said = []
    for make in (
        lambda: RowParallelLinear(nn.Linear(9, 4)),
        lambda: VocabParallelEmbedding(nn.Embedding(8, 4, sparse=True)),
        lambda: VocabParallelEmbedding(nn.Embedding(8, 4, max_norm=1.0)),
        lambda: ColumnParallelLinear(nn.Linear(4, 4))(torch.ones(2, 5)),
    ):
        try:
            make()
        except (ValueError, RuntimeError) as error:
            said.append(str(error))
    return said


def test_mistakes_are_named():
    rows, sparse, norm, shapes = launch(mistakes, 2)[0]
    assert "9, cannot be cut over 2 ranks; 1, 3, 9 ranks would do" in rows
    assert "sparse=True" in sparse
    assert "max_norm=1.0" in norm
    assert "2x5" in shapes
