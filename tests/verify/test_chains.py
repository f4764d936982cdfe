"""Models written down as data are what their words say."""

from __future__ import annotations

import pytest
import torch

from dtcourse.verify.chains import CONTAINERS, Block, Chain, packed, unpacked

KINDS = {"linear": (3, 3), "narrow": (1, 3), "scale": (3,), "number": (), "empty": (0,)}


def chain(*blocks, seed=0, **options):
    torch.manual_seed(seed)
    return Chain(blocks, width=3, **options)


def x(rows=4):
    return torch.randn(rows, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def gradients(model, **forward):
    out, beside = model(x(), **forward)
    unpacked(out, model.returns).sum().backward()
    return {n: p.grad for n, p in model.named_parameters()}, beside


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_has_the_shape_of_its_kind_and_gets_a_gradient(kind):
    model = chain(Block("linear"), Block(kind, bias=False))
    assert model.layers[1].weight.shape == KINDS[kind]
    found, _ = gradients(model)
    assert found["layers.1.weight"].shape == KINDS[kind]
    assert model(x())[0].shape == (4, 3)


@pytest.mark.parametrize("container", CONTAINERS)
def test_what_goes_into_a_container_comes_out(container):
    y = x()
    assert unpacked(packed(y, container), container) is y
    as_tensor = chain(Block(), Block())
    inside = chain(Block(returns=container), Block(), returns=container)
    assert type(inside(x())[0]) is type(packed(y, container))
    assert torch.equal(unpacked(inside(x())[0], container), as_tensor(x())[0])


@pytest.mark.parametrize("recompute", ["reentrant", "not reentrant"])
def test_a_checkpoint_changes_no_gradient_and_runs_the_block_again(recompute):
    blocks = [Block(), Block("scale", buffer=True, recompute=recompute), Block()]
    plain = chain(blocks[0], Block("scale", buffer=True), blocks[2])
    model = chain(*blocks)
    found, _ = gradients(model)
    expected, _ = gradients(plain)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert model.layers[1].calls == 2 and plain.layers[1].calls == 1


def test_the_same_module_or_the_same_weight_again():
    module = chain(Block(), Block("scale", same_as=(0, "module")))
    assert module.layers[0] is module.layers[1], "whatever its own kind would be"
    weight = chain(Block(), Block(same_as=(0, "weight")))
    assert weight.layers[0] is not weight.layers[1]
    assert weight.layers[0].weight is weight.layers[1].weight
    assert weight.layers[0].bias is not weight.layers[1].bias


def test_frozen_names_need_no_gradient():
    found, _ = gradients(
        chain(Block(frozen=frozenset({"bias"})), Block(frozen=frozenset({"weight"})))
    )
    assert {name for name, gradient in found.items() if gradient is None} == {
        "layers.0.bias",
        "layers.1.weight",
    }


def test_what_is_left_out_or_beside_takes_no_part_in_the_result():
    model = chain(Block(), Block(optional=True), Block())
    left_out, _ = gradients(model, left_out={1})
    assert left_out["layers.1.weight"] is None and left_out["layers.0.weight"] is not None
    beside_model = chain(Block(), Block(beside=True), Block())
    found, beside = gradients(beside_model)
    assert found["layers.1.weight"] is None and len(beside) == 1 and beside[0].requires_grad
    assert torch.equal(beside_model(x())[0], model(x(), left_out={1})[0])
