"""Two techniques over one model are one process: gradients per parameter, norms, clipped steps and the state."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import launch, sharding
from dtcourse.parameters.clipping import clip_grad_norm, grad_norm
from dtcourse.parameters.cuts import Sliced
from dtcourse.parameters.placement import placement_of
from dtcourse.parameters.whole import full_gradients, full_state_dict
from dtcourse.verify import compare
from tests.pairs.layouts import (
    EXPERTS,
    GPT2,
    INNER,
    LLAMA,
    NORMS,
    ONE_KV_HEAD,
    Layout,
    Training,
    alone,
    backward,
    batch,
    build,
    together,
)
from tests.pairs.table import SHARDED, working, zeros

# Each value of each parameter is tried every time, their other combinations by turns (tests/turns.py).
pytestmark = pytest.mark.each_once("tests/pairs/", "dtcourse/parameters/")

SHAPES = ((2, 2), (3, 2))

truth = functools.cache(alone)


def check(layout: Layout, config: Any) -> None:
    right = truth(config)
    assert min(norm for _, norm, _ in right.norms) > 0.3, "clipping changes something"
    for rank, found in enumerate(launch(together, layout.ranks, layout, config)):
        where = f"{layout}, rank {rank}"
        for step, (mine, theirs) in enumerate(zip(found.gradients, right.gradients, strict=True)):
            if layout.inner == "expert" or layout.outer == "reduce_gradients":  # zeros of none
                trained = [n for n, p in build(config).named_parameters() if p.requires_grad]
                theirs = theirs | {
                    n: torch.zeros_like(mine[n]) for n in trained if theirs[n] is None
                }
            compare(mine, theirs, 1e-12, f"{where}, step {step}: gradient", norm=2)
        for mine, theirs in zip(found.norms, right.norms, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-12), where
        compare(found.state, right.state, 1e-12, f"{where}: value", norm=2)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("outer", working("tensor"))
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["tied", "grouped"])
def test_full_sharding_over_tensor_parallelism(outer, shape, config):
    check(Layout(outer, "tensor", shape), config)


def test_key_value_heads_that_two_ranks_hold_count_once():
    check(Layout("FullyShardedDataParallel", "tensor", (2, 2)), ONE_KV_HEAD)


@pytest.mark.parametrize("outer", working("sequence"))
def test_full_sharding_over_sequence_parallelism(outer):
    """Hooks that sum the norms' gradients over the tensor ranks were registered before the model was sharded."""
    check(Layout(outer, "sequence", (2, 2)), GPT2)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("outer", working("expert"))
def test_full_sharding_over_expert_parallelism(outer, shape):
    check(Layout(outer, "expert", shape), EXPERTS)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("outer", zeros("tensor"))
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["tied", "grouped"])
def test_zero_over_tensor_parallelism(outer, shape, config):
    check(Layout(outer, "tensor", shape), config)


@pytest.mark.parametrize("outer", zeros("sequence"))
def test_zero_over_sequence_parallelism(outer):
    check(Layout(outer, "sequence", (2, 2)), GPT2)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("outer", zeros("expert"))
def test_zero_over_expert_parallelism(outer, shape):
    check(Layout(outer, "expert", shape), EXPERTS)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("outer", ["ZeRO-1", "ZeRO-2", "reduce_gradients"])
def test_zero_alone(outer, ranks):
    check(Layout(outer, "nothing", (ranks, 1)), GPT2)


def three_axes(outer, shape):
    """Hybrid sharding over tensor parallelism: gradients, norms, and the state after a conversion and a change."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "data", "inner"))
    model, shard = build(GPT2), getattr(sharding, outer)
    INNER["tensor"](model, mesh)
    for block in model.blocks:
        shard(block, mesh=mesh["replicate", "data"])
    shard(model, mesh=mesh["replicate", "data"])
    ranks, mine = shape[0] * shape[1], mesh["replicate"].get_local_rank() * shape[1]
    mine += mesh["data"].get_local_rank()
    x, y = (t.chunk(ranks)[mine] for t in batch(GPT2))
    model.loss(x, y).backward()
    norms = [clip_grad_norm(model, 1e9, kind).item() for kind in NORMS]
    gradients = full_gradients(model)
    if outer == "fully_shard":
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        assert nn.utils.get_total_norm(grads).full_tensor().item() == pytest.approx(norms[1])
        model.to(torch.float32)
        rounded = full_state_dict(model)
        model.blocks[0].mlp.up.weight.requires_grad_(False)
        model.loss(x, y)  # lays the shards out anew
        compare(full_state_dict(model), rounded, 0.0, "value")
        compare(rounded, {n: t.float() for n, t in build(GPT2).state_dict().items()}, 0.0, "value")
    return norms, gradients


@pytest.mark.parametrize("shape", [(2, 1, 2), (1, 2, 2)], ids=str)
@pytest.mark.parametrize("outer", SHARDED)
def test_hybrid_sharding_over_tensor_parallelism(outer, shape):
    right = truth(GPT2)
    for norms, gradients in launch(three_axes, 4, outer, shape):
        assert norms == pytest.approx(right.norms[0], rel=1e-12)
        compare(gradients, right.gradients[0], 1e-12, norm=2)


# --- torch's own norm, of the DTensors of both axes -----------------------------------------------------------------


def torchs_norm(layout, config):
    mesh = layout.mesh()
    model = layout.apply(build(config), mesh)
    backward(model, layout, mesh, 0, config)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norms = [nn.utils.get_total_norm(grads, kind).full_tensor().item() for kind in NORMS[:2]]
    clipped = nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor().item()
    whole = {n: t.full_tensor() for n, t in model.state_dict().items()}
    return norms, clipped, clip_grad_norm(model, 1e9).item(), whole


@pytest.mark.parametrize(
    ("inner", "config"), [("tensor", LLAMA), ("tensor", GPT2), ("expert", EXPERTS)]
)
def test_torchs_clip_is_right_on_fully_shard_over_another(inner, config):
    right = truth(config)
    for norms, clipped, after, whole in launch(
        torchs_norm, 4, Layout("fully_shard", inner, (2, 2)), config
    ):
        assert norms == pytest.approx(right.norms[0][:2], rel=1e-10)
        assert clipped == pytest.approx(right.norms[0][1], rel=1e-10)
        assert after == pytest.approx(0.1, rel=1e-4)
        for name, value in build(config).state_dict().items():
            mine = (
                whole[name.replace("experts.", "experts.mine.")]
                if inner == "expert"
                else whole[name]
            )
            # Where a dim does not divide, a DTensor has the padding too.
            assert torch.equal(mine[tuple(slice(n) for n in value.shape)], value), name
            assert mine.count_nonzero() == value.count_nonzero(), name


# --- broken on purpose ----------------------------------------------------------------------------------------------


def one_axis_wrong(layout, config, mistake):
    """A norm that forgets, or doubles, one axis: the placements are changed under it."""
    mesh = layout.mesh()
    model = layout.apply(build(config), mesh)
    backward(model, layout, mesh, 0, config)
    for parameter in model.parameters():
        placed = parameter.placed
        cuts = placed.cuts
        if mistake == "forgets data":
            cuts = tuple(c for c in cuts if c.group != mesh.get_group("data"))
        elif mistake == "forgets inner":
            cuts = tuple(c for c in cuts if c.group != mesh.get_group("inner"))
        elif mistake == "counts copies":  # what all hold is taken for cut
            like = next(c for p in model.parameters() for c in p.placed.cuts
                        if c.group == mesh.get_group("inner") and c.differs)  # fmt: skip
            cuts = tuple(like if c.group == mesh.get_group("inner") else c for c in cuts)
        parameter.placed = type(placed)(placed.shape, cuts)
    return clip_grad_norm(model, 1e9).item()


def owners_wrong(layout, config, mistake):
    training = Training(layout, config, seed=0)
    training.backward(0)
    for parameter in training.model.parameters():
        if mistake == "forgets owners":
            parameter.gradient_owners = None
        elif mistake == "takes copies for cut":  # as if each rank of the data axis had another part
            over = Sliced(0, len(parameter), training.mesh["data"].get_group())
            parameter.placed = placement_of(parameter).and_then(over)
    return grad_norm(training.model).item()


@pytest.mark.parametrize(
    ("outer", "inner", "config", "mistake"),
    [
        ("ZeRO-2", "tensor", GPT2, "forgets owners"),
        ("reduce_gradients", "sequence", GPT2, "forgets owners"),
        ("ZeRO-1", "tensor", GPT2, "takes copies for cut"),
        ("ZeRO-1", "expert", EXPERTS, "takes copies for cut"),
    ],
)
def test_owners_too_few_or_too_many_are_seen(outer, inner, config, mistake):
    right = truth(config).norms[0][1]
    for wrong in launch(owners_wrong, 4, Layout(outer, inner, (2, 2)), config, mistake):
        assert not math.isclose(wrong, right, rel_tol=1e-3)


@pytest.mark.parametrize("mistake", ["forgets data", "forgets inner", "counts copies"])
@pytest.mark.parametrize("outer", SHARDED)
@pytest.mark.parametrize(("inner", "config"), [("tensor", GPT2), ("expert", EXPERTS)])
def test_an_axis_too_few_or_too_many_is_seen(outer, inner, config, mistake):
    right = truth(config).norms[0][1]
    for wrong in launch(one_axis_wrong, 4, Layout(outer, inner, (2, 2)), config, mistake):
        assert not math.isclose(wrong, right, rel_tol=1e-3)
