"""Models that are not the same are told on every rank, with the first parameter that differs and what two ranks have.

Of a cut parameter the whole counts: pieces of equal shapes may be of different wholes, and other pieces of the same.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import launch, sharding
from dtcourse.data_parallel import DistributedDataParallel, check_replicas
from dtcourse.data_parallel.consistency import ReplicasDiffer
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.parameters import same_model
from dtcourse.parameters.placement import Placement
from dtcourse.parameters.same_model import check_same_model
from dtcourse.pipeline_parallel import Pipeline, one_f_one_b
from dtcourse.tensor_parallel import ColumnParallelLinear, parallelize, transformer_plan

CONFIG = TransformerConfig(vocab=31, n_layers=1, d_model=8, n_heads=2, max_length=4, d_ff=6)


def axes():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))


def cut(mesh, vocab=31):
    """Two tensor ranks keep 16 rows of a vocabulary of 31, and of one of 32."""
    model = Transformer(replace(CONFIG, vocab=vocab)).double()
    return parallelize(model, transformer_plan(model), mesh["tensor"])


def other_wholes(mesh):
    check_same_model(cut(mesh, 31 + mesh["data"].get_local_rank()), mesh["data"].get_group())


def other_pieces(mesh):
    """Ranks 0 and 3, and 1 and 2, hold different slices."""
    model, rank = cut(mesh), dist.get_rank()
    groups = [dist.new_group(ranks) for ranks in ([0, 3], [1, 2])]
    check_same_model(model, groups[rank in (1, 2)])


def one_is_cut(mesh):
    """Rank 1's slices would become rank 0's whole; it alone sees it."""
    layer = nn.Linear(4, 4)
    if mesh["tensor"].get_local_rank() == 1:
        layer = ColumnParallelLinear(nn.Linear(4, 8), mesh["tensor"].get_group())
    check_same_model(layer, mesh["tensor"].get_group())


def one_more_buffer(mesh):
    """ZeRO-2 sent them one by one, and more on one rank than on the other."""
    layer = nn.Linear(2, 2)
    if mesh["data"].get_local_rank():
        layer.register_buffer("mean", torch.zeros(2))
    group = mesh["data"].get_group()
    optimizer = sharding.ZeroRedundancyOptimizer(layer.parameters(), torch.optim.SGD, group, lr=0.1)
    sharding.ShardedDataParallel(layer, optimizer)


def other_names(mesh):
    layer = nn.Linear(2 + mesh["data"].get_local_rank(), 2)
    sharding.ZeroRedundancyOptimizer(
        layer.named_parameters(), torch.optim.SGD, mesh["data"].get_group(), lr=0.1
    )


def other_stages(mesh):
    stage = nn.Linear(3 + mesh["data"].get_local_rank(), 3)
    pipe, data = mesh.get_group("tensor"), mesh.get_group("data")
    Pipeline([stage], one_f_one_b(2, 2), nn.functional.mse_loss, pipe, data_parallel=data)


def other_flats(mesh):
    sharding.FullyShardedDataParallel(cut(mesh, 31 + mesh["data"].get_local_rank()), mesh["data"])


def other_replicas(mesh):
    DistributedDataParallel(cut(mesh, 31 + mesh["data"].get_local_rank()), device_mesh=mesh["data"])


WHOLES = (
    r"rank [01] has token_embedding.weight \[31, 8\] float64, of which \[16, 8\] is here, part [01] of 2 along dim 0, "
    r"rank [23] has token_embedding.weight \[32, 8\] float64, of which \[16, 8\] is here"
)
SAID = {
    other_wholes: "built different models: " + WHOLES,
    other_replicas: "built different models: " + WHOLES,
    other_flats: "shard different modules: " + WHOLES,
    other_pieces: r"rank ([01]) has token_embedding.weight .*, part \1 of 2 along dim 0, "
    r"rank [23] has token_embedding.weight .*, part [01] of 2 along dim 0",
    one_is_cut: r"(rank [13] could not go on, so no rank does: )?one model on all ranks: weight is a slice, of tensor",
    one_more_buffer: r"rank [01] has 2 tensors, rank [23] has 3, among them mean \[2\] float32 \(frozen\)",
    other_names: r"rank [01] has weight \[2, 2\] float32, rank [23] has weight \[2, 3\] float32",
    other_stages: r"the ranks train different stages: rank ([01]) has stage \1's weight \[3, 3\] float32, "
    r"rank [23] has stage [01]'s weight \[3, 4\]",
}  # fmt: skip
BY_PLACEMENT = (other_wholes, other_replicas, other_flats, other_pieces)


def without_placements():
    """A mutant, and what was asked before there were placements: the shape that is here, and no more."""
    return patch.object(same_model, "placement_of", lambda tensor: Placement(tensor.shape))


def said_of_all(mutant=False):
    mesh, said = axes(), {}
    for attempt in BY_PLACEMENT if mutant else SAID:
        try:
            with without_placements() if mutant else nullcontext():
                attempt(mesh)
            said[attempt.__name__] = "nothing"
        except ValueError as error:
            said[attempt.__name__] = str(error)
    return said


def test_what_differs_is_told_on_every_rank():
    for found in launch(said_of_all, 4):
        for attempt, words in SAID.items():
            assert re.search(words, found[attempt.__name__]), found[attempt.__name__]


def test_by_the_shapes_of_pieces_alone_it_would_pass():
    for found in launch(said_of_all, 4, mutant=True):
        assert found == {attempt.__name__: "nothing" for attempt in BY_PLACEMENT}


def same():
    """Over the axis on which models are the same, and over the one on which they are cut: by whoever has cut them."""
    mesh = axes()
    model = cut(mesh)
    check_same_model(model, mesh["data"].get_group())
    named = same_model.named_tensors(model)
    for group in (mesh["tensor"].get_group(), None):
        same_model.check_same(named, group, "cut different models")
    check_replicas(model)  # what each of all four has whole
    with torch.no_grad():
        model.norm.weight[0] += 1e-9 * (dist.get_rank() == 3)
    with pytest.raises(ReplicasDiffer, match=r"1 of \d+ tensors .*: norm.weight. .* rank 3"):
        check_replicas(model)
    with torch.no_grad():
        model.output.weight[0] += 1e-9 * (dist.get_rank() == 2)
    with pytest.raises(ReplicasDiffer) as error:
        check_replicas(model, mesh["data"].get_group())
    return error.value.tensors


def test_what_is_cut_over_the_ranks_is_the_same_whole():
    found = [*launch(same, 4)]
    assert found == [["token_embedding.weight"], ["norm.weight"]] * 2


@pytest.mark.parametrize("shard", [sharding.fully_shard, sharding.FullyShardedDataParallel])
def test_pieces_of_a_sharded_model_differ_and_its_whole_is_the_same(shard):
    def step():
        layer = shard(nn.Linear(3, 5))  # three ranks have 2, 2 and 1 of the rows, or runs of a flat
        same_model.check_same(same_model.named_tensors(layer), None, "shard different modules")
        with pytest.raises(ValueError, match=r"one model on all ranks: .* is a slice, of full"):
            check_same_model(layer)

    launch(step, 3)
