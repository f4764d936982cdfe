"""Parameters of a cut model that others make anew keep where their pieces are, and the sums of their gradients:
to_empty, give_memory, conversions, PyTorch's fully_shard and ours.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from dtcourse import launch, sharding
from dtcourse.expert_parallel import average_gradients, expert_parallel
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.parameters import whole
from dtcourse.parameters.clipping import clip_grad_norm
from dtcourse.parameters.on_meta import give_memory
from dtcourse.sequence_parallel import parallelize_sequence
from dtcourse.tensor_parallel import parallelize, transformer_plan
from dtcourse.verify import compare, gradients_of

SHAPE = TransformerConfig(vocab=31, n_layers=2, d_model=16, n_heads=4, max_length=8, tied=False)
EXPERTS = replace(SHAPE, d_ff=6, experts=4)
RANKS = 2


def batch():
    make = torch.Generator().manual_seed(1)
    return [torch.randint(31, (4, 8), generator=make) for _ in range(2)]


def right(shape):
    """One process: state, gradients, norm."""
    model = Transformer(shape).double()
    model.loss(*batch()).backward()
    return (
        model.state_dict(),
        gradients_of(model),
        nn.utils.get_total_norm([p.grad for p in model.parameters()]),
    )


def cut(model, technique):
    mesh = init_device_mesh("cpu", (RANKS,))
    if technique in ("tensor", "sequence"):
        parallelize(model, transformer_plan(model), mesh, src_data_rank=None)
        return parallelize_sequence(model, mesh) if technique == "sequence" else model
    return expert_parallel(model, mesh, broadcast=False)


def found(model, technique):
    """State, gradients, norm, of whole parameters."""
    mesh = init_device_mesh("cpu", (RANKS,))
    if technique == "expert":
        model.loss(*batch()).backward()
    else:
        through_forward(model)
    if technique == "expert":  # all ranks have the same tokens here
        average_gradients(model, mesh)
    norm = clip_grad_norm(model, 1e9)
    return whole.full_state_dict(model), whole.full_gradients(model), norm


def through_forward(model):
    """Not by loss(): what shards a model has its hooks round forward."""
    logits = model(batch()[0])
    nn.functional.cross_entropy(logits.flatten(0, -2), batch()[1].flatten()).backward()


def emptied(shape, *techniques):
    results = []
    for technique in techniques:
        technique, _, way = technique.partition(", ")
        with torch.device("meta"):
            model = cut(Transformer(shape).double(), technique)
        if way == "give_memory":
            give_memory(model, "cpu")
        else:
            model.to_empty(device="cpu")
        if way == "our fully_shard":
            mesh = init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("data", "tensor"))
            sharding.fully_shard(model, mesh=mesh["data"])
        whole.load_full_state_dict(model, Transformer(shape).double().state_dict())
        results.append(found(model, technique))
    return results


def converted(technique, shape):
    model = cut(Transformer(shape), technique)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model = model.double()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    return found(model, technique)


def torchs_sharding(shape):
    """PyTorch's fully_shard over our tensor parallelism: on four ranks, all with the same samples."""
    mesh = init_device_mesh("cpu", (RANKS, RANKS), mesh_dim_names=("data", "tensor"))
    model = Transformer(shape).double()
    parallelize(model, transformer_plan(model), mesh["tensor"], src_data_rank=None)
    parallelize_sequence(model, mesh["tensor"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    model(batch()[0])
    model.zero_grad()
    through_forward(model)
    return whole.full_state_dict(model), whole.full_gradients(model), clip_grad_norm(model, 1e9)


def check(ranks, shape):
    state, gradients, norm = right(shape)
    for got_state, got_gradients, got_norm in ranks:
        compare(got_state, state, 1e-12, "value")
        compare(got_gradients, gradients, 1e-12, "gradient")
        assert got_norm.item() == pytest.approx(norm.item(), rel=1e-12)


WAYS = {
    "tensor": ["tensor", "sequence", "sequence, give_memory", "sequence, our fully_shard"],
    "expert": ["expert"],
}


@pytest.mark.parametrize("technique", WAYS)
def test_pieces_are_known_again_after_to_empty(technique):
    shape = SHAPE if technique == "tensor" else EXPERTS
    for way in zip(*launch(emptied, RANKS, shape, *WAYS[technique]), strict=True):
        check(way, shape)


def test_a_conversion_that_makes_parameters_anew():
    check(launch(converted, RANKS, "sequence", SHAPE), SHAPE)


def test_pytorchs_fully_shard_over_our_tensor_and_sequence_parallelism():
    check(launch(torchs_sharding, RANKS**2, SHAPE), SHAPE)


def come_apart():
    with torch.device("meta"):
        model, other = (cut(Transformer(replace(SHAPE, tied=True)), "tensor") for _ in range(2))
    with pytest.raises(ValueError) as caught:
        whole.full_state_dict(model.to_empty(device="cpu"))
    give_memory(other, "cpu")
    whole.full_state_dict(other)
    return str(caught.value)


def test_a_tied_parameter_that_to_empty_makes_two_of_is_refused():
    for said in launch(come_apart, RANKS):
        assert said.startswith(
            "token_embedding.weight and output.weight were one parameter, of which to_empty"
        )
        assert "give_memory(model, device)" in said


def of_another_shape():
    model = cut(Transformer(SHAPE), "tensor")
    model.norm.weight = nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError) as caught:
        whole.full_state_dict(model)
    return str(caught.value)


def test_a_parameter_of_another_shape_is_refused():
    for said in launch(of_another_shape, RANKS):
        assert "has been replaced by a parameter of shape [3] for [16]" in said
