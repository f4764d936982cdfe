"""Two techniques over one model, on a mesh of two axes: what is right is proven against one process, what is not is
refused, in whichever order the two are applied.
"""

from __future__ import annotations

import math
import pickle
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import expert_parallel as ep
from dtcourse import launch, sharding
from dtcourse import tensor_parallel as tp
from dtcourse.data_parallel import DistributedDataParallel, PerParameterDataParallel
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.parameters.cuts import EXPERT, FULL, TENSOR
from dtcourse.parameters.slices import Slice, slices_of
from dtcourse.pipeline_parallel import Pipeline, layers_of, one_f_one_b, split, zb_h1
from dtcourse.sequence_parallel import parallelize_sequence
from dtcourse.sharding import ShardedDataParallel, ZeroRedundancyOptimizer
from dtcourse.verify import compare, gradients_of

CONFIG = TransformerConfig(vocab=30, n_layers=1, d_model=16, n_heads=4, max_length=8)
COLWISE = tp.ColwiseParallel(gather_output=True)
EXPERTS = TransformerConfig(31, 16, 1, 4, max_length=8, d_ff=8, experts=4)


def axes():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "other"))


def tensor_parallel(mesh):
    model = Transformer(CONFIG).double()
    return tp.parallelize(model, tp.transformer_plan(model), mesh["other"])


def one_kv_head(mesh):
    config = replace(CONFIG, n_kv_heads=1)
    model = Transformer(config).double()
    return tp.parallelize(model, tp.transformer_plan(model), mesh["other"])


def experts(mesh):
    return ep.expert_parallel(Transformer(EXPERTS).double(), mesh, "other")


def fully_shard_first(mesh):
    return sharding.fully_shard(Transformer(CONFIG).double(), mesh=mesh["data"])


def flat_first(mesh):
    return sharding.FullyShardedDataParallel(Transformer(CONFIG).double(), mesh=mesh["data"])


def wrapped_first(mesh):
    return DistributedDataParallel(Transformer(CONFIG).double())


# --- what is refused ------------------------------------------------------------------------------------------------


def zero1(model, group):
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, group, lr=0.1)


def plan(model):
    return tp.transformer_plan(model)


def on_owners(mesh):
    """ZeRO-2 over the data axis: the gradients are on their owners."""
    model = tensor_parallel(mesh)
    wrapped = ShardedDataParallel(model, zero1(model, mesh["data"].get_group()))
    wrapped.module.loss(*batch()).backward()
    return wrapped


def stages_of(mesh):
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    ranges, rank = [range(1), range(1, 2)], mesh["other"].get_local_rank()
    return split(layers, ranges, one_f_one_b(2, 2), rank)


def stage_of(shard, mesh):
    return [shard(stage, mesh=mesh["data"]) for stage in stages_of(mesh)]


def zero2_stages(mesh):
    (stage,) = stages_of(mesh)
    return [ShardedDataParallel(stage, zero1(stage, mesh["data"].get_group()))]


def wrap_a_layer(wrapper, stage, **keywords):
    stage[0] = wrapper(stage[0], **keywords)
    return stage


fully_sharded_stage = partial(stage_of, sharding.fully_shard)
flat_stage = partial(stage_of, sharding.FullyShardedDataParallel)


def piped(stages, schedule, mesh, over="other", **keywords):
    return Pipeline(stages, schedule, nn.functional.mse_loss, mesh[over].get_group(), **keywords)


REFUSED = {
    # full sharding and tensor parallelism
    "fully_shard over the tensor axis": (
        tensor_parallel,
        lambda m, x: sharding.fully_shard(m, mesh=x["other"]),
        r"fully_shard: .*slice, of tensor parallelism, and ranks ([02], [13]|0, 1|2, 3) of this group hold different",
    ),
    "flat over all ranks": (
        tensor_parallel,
        lambda m, x: sharding.FullyShardedDataParallel(m),
        r"FullyShardedDataParallel: .*data axis of a mesh",
    ),
    "a block over the tensor axis": (
        tensor_parallel,
        lambda m, x: sharding.fully_shard(m.blocks[0], mesh=x["other"]),
        "slice, of tensor parallelism",
    ),
    "rows of copies": (
        one_kv_head,
        lambda m, x: sharding.fully_shard(m, mesh=x["data"]),
        r"slice that 2 neighbouring ranks hold alike.*Take FullyShardedDataParallel, or at most 1 ranks",
    ),
    "tensor over fully_shard": (
        fully_shard_first,
        lambda m, x: tp.parallelize(m, plan(m), x["other"]),
        "parallelize does not compose with full sharding yet",
    ),
    "tensor over flat": (
        flat_first,
        lambda m, x: tp.parallelize(m, plan(m), x["other"]),
        "parallelize does not compose with full sharding yet",
    ),
    # full sharding and experts
    "fully_shard over the experts' axis": (
        experts,
        lambda m, x: sharding.fully_shard(m, mesh=x["other"]),
        "slice, of expert parallelism",
    ),
    "experts over fully_shard": (
        lambda x: sharding.fully_shard(Transformer(EXPERTS), mesh=x["data"]),
        lambda m, x: ep.expert_parallel(m, x, "other"),
        "full sharding",
    ),
    # tensor parallelism twice
    "a second plan": (
        lambda x: tp.parallelize(Transformer(CONFIG), {"blocks.0.mlp.up": COLWISE}, x["other"]),
        lambda m, x: tp.parallelize(m, {"blocks.0.attention.query": COLWISE}, x["other"]),
        r"put all styles into one plan, or pass src_data_rank=None\).*different ones",
    ),
    # replicas that are none
    "DDP over the tensor axis": (
        tensor_parallel,
        lambda m, x: DistributedDataParallel(m, device_mesh=x["other"]),
        "ranks [02], [13] of this group hold different ones",
    ),
    "DDP over all ranks": (tensor_parallel, lambda m, x: DistributedDataParallel(m), r"\['data'\]"),
    "without init_sync": (tensor_parallel, lambda m, x: DistributedDataParallel(m, init_sync=False), "slice"),
    "a parameter at a time": (tensor_parallel, lambda m, x: PerParameterDataParallel(m), "slice"),
    "ZeRO-1 over all ranks": (tensor_parallel, lambda m, x: zero1(m, None), "ZeroRedundancyOptimizer: "),
    "ZeRO-1 over the tensor axis": (tensor_parallel, lambda m, x: zero1(m, x["other"].get_group()), "slice"),
    "DDP over experts, all ranks": (experts, lambda m, x: DistributedDataParallel(m), "average_gradients"),
    "DDP over experts, data axis": (
        experts,
        lambda m, x: DistributedDataParallel(m, device_mesh=x["data"]),
        r"average_gradients\(model, mesh\)",
    ),
    "ZeRO-1 over all experts": (experts, lambda m, x: zero1(m, None), "slice, of expert parallelism"),
    "ZeRO-1 reduces experts": (
        experts,
        lambda m, x: zero1(m, x["data"].get_group()).reduce_gradients(),
        "average_gradients",
    ),
    "ZeRO-2 over experts": (
        experts,
        lambda m, x: ShardedDataParallel(m, zero1(m, x["data"].get_group())),
        "average_gradients",
    ),
    "DDP over full sharding": (
        fully_shard_first,
        lambda m, x: DistributedDataParallel(m, device_mesh=x["other"]),
        "mesh of two axes",
    ),
    "ZeRO-1 over full sharding": (flat_first, lambda m, x: zero1(m, x["other"].get_group()), "full sharding"),
    # full sharding of what is sharded, and with ZeRO-2
    "fully_shard over fully_shard": (
        fully_shard_first,
        lambda m, x: sharding.fully_shard(m, mesh=x["other"]),
        "sharded already: shard a module once",
    ),
    "flat over fully_shard": (
        fully_shard_first,
        lambda m, x: sharding.FullyShardedDataParallel(m, mesh=x["other"]),
        "sharded already: shard a module once",
    ),
    "ZeRO-2 over full sharding": (
        fully_shard_first,
        lambda m, x: ShardedDataParallel(m, zero1(m, x["other"].get_group())),
        "ZeroRedundancyOptimizer does not compose with full sharding",
    ),
    # tensor parallelism and experts over what has cut the same layers
    "tensor over sequence": (
        lambda x: parallelize_sequence(tensor_parallel(x), x["other"]),
        lambda m, x: tp.parallelize(m, {"blocks.0.mlp": plan(Transformer(CONFIG))["blocks.*.mlp"]}, x["data"]),
        "RegionParallel is for nn.Linear, and blocks.0.mlp.up is a ColumnParallelLinear",
    ),
    "tensor over tensor": (
        tensor_parallel,
        lambda m, x: tp.parallelize(m, {"blocks.0.mlp": plan(Transformer(CONFIG))["blocks.*.mlp"]}, x["data"]),
        "RegionParallel is for nn.Linear, and blocks.0.mlp.up is a ColumnParallelLinear",
    ),
    "experts over experts": (
        experts,
        lambda m, x: ep.expert_parallel(m, x, "other"),
        "the experts of blocks.0.mlp have been given out already",
    ),
    "sequence of a mixture": (
        lambda x: tp.parallelize(m := Transformer(EXPERTS).double(), plan(m), x["other"]),
        lambda m, x: parallelize_sequence(m, x["other"]),
        r"blocks.0.mlp is a mixture of experts.*gate.*own tokens",
    ),
    # two means over one data axis
    "fully_shard over DDP": (wrapped_first, lambda m, x: sharding.fully_shard(m), "data-parallel wrapper already"),
    "fully_shard inside DDP": (
        wrapped_first,
        lambda m, x: sharding.fully_shard(m.module, mesh=x["data"]),
        r"fully_shard: the gradient of token_embedding.weight .*let go of that first .*mesh of two axes",
    ),
    "flat over DDP": (
        wrapped_first,
        lambda m, x: sharding.FullyShardedDataParallel(m),
        "FullyShardedDataParallel: .*data-parallel wrapper already",
    ),
    "fully_shard over one parameter at a time": (
        lambda x: PerParameterDataParallel(Transformer(CONFIG)),
        lambda m, x: sharding.fully_shard(m),
        "data-parallel wrapper already",
    ),
    "fully_shard over ZeRO-2": (
        on_owners,
        lambda m, x: sharding.fully_shard(m.module, mesh=x["data"]),
        "data-parallel wrapper already",
    ),
    # pipelines
    "a pipeline over fully_shard": (
        fully_shard_first,
        lambda m, x: split(layers_of(m), [range(1), range(1, 3)], one_f_one_b(2, 2), x["other"].get_local_rank()),
        "split does not compose with full sharding.*First split, then shard",
    ),
    "a pipeline over flat": (
        flat_first,
        lambda m, x: split(layers_of(m), [range(1), range(1, 3)], one_f_one_b(2, 2), x["other"].get_local_rank()),
        "split does not compose with full sharding.*First split, then shard",
    ),
    "split backward under fully_shard": (
        fully_sharded_stage,
        lambda m, x: piped(m, zb_h1(2, 2), x),
        "A backward in two halves does not compose with full sharding.*gpipe, one_f_one_b",
    ),
    "split backward under FullyShardedDataParallel": (
        flat_stage,
        lambda m, x: piped(m, zb_h1(2, 2), x),
        "A backward in two halves does not compose with full sharding.*freed after the first half",
    ),
    "experts in stages of one's own": (
        experts,
        lambda m, x: piped([m.blocks], one_f_one_b(2, 2), x),
        "Stage [01] makes a loss of its own.*Let `split` make the stages",
    ),
    "split backward under ZeRO-2": (
        zero2_stages,
        lambda m, x: piped(m, zb_h1(2, 2), x),
        r"ShardedDataParallel reduces the gradients of each.*reduce_gradients\(\)",
    ),
    "split backward under DistributedDataParallel": (
        lambda x: [DistributedDataParallel(one, device_mesh=x["data"]) for one in stages_of(x)],
        lambda m, x: piped(m, zb_h1(2, 2), x),
        "DistributedDataParallel reduces the gradients of each",
    ),
    # In these a step hung, or gave names that the whole model has not.
    "stages in DistributedDataParallel": (
        lambda x: [DistributedDataParallel(one, device_mesh=x["data"]) for one in stages_of(x)],
        lambda m, x: piped(m, one_f_one_b(2, 2), x),
        r"wrapper averages the gradient of module.0.weight.*Pipeline\(\.\.\., data_parallel=",
    ),
    "a layer of a stage in DistributedDataParallel": (
        lambda x: [wrap_a_layer(DistributedDataParallel, one, device_mesh=x["data"]) for one in stages_of(x)],
        lambda m, x: piped(m, one_f_one_b(2, 2), x),
        "wrapper averages the gradient of 0.module.weight",
    ),
    "stages in PerParameterDataParallel": (
        lambda x: [PerParameterDataParallel(one, x["data"].get_group()) for one in stages_of(x)],
        lambda m, x: piped(m, one_f_one_b(2, 2), x),
        "wrapper averages the gradient of module.0.weight",
    ),
    "stages in torch's DDP": (
        lambda x: [TorchDDP(one, process_group=x["data"].get_group()) for one in stages_of(x)],
        lambda m, x: piped(m, one_f_one_b(2, 2), x),
        r"PyTorch's DistributedDataParallel is round a stage.*Pipeline\(\.\.\., data_parallel=",
    ),
    "a layer in torch's DDP": (
        lambda x: [wrap_a_layer(TorchDDP, one, process_group=x["data"].get_group()) for one in stages_of(x)],
        lambda m, x: piped(m, one_f_one_b(2, 2), x),
        "PyTorch's DistributedDataParallel is round 0 of a stage",
    ),
    "two means over ZeRO-2's axis": (
        zero2_stages,
        lambda m, x: piped(m, one_f_one_b(2, 2), x, data_parallel=x["data"].get_group()),
        "Pipeline's data_parallel: the gradient of stage [01]'s .*data-parallel wrapper already",
    ),
    "shared gradients on owners": (
        zero2_stages,
        lambda m, x: piped(
            m, one_f_one_b(2, 2), x, shared=[(m[0].module[0].weight, x["other"].get_group())]
        ),
        "shared: ZeRO-2 leaves a gradient on one replica",
    ),
    "two means over one data axis": (
        fully_sharded_stage,
        lambda m, x: piped(m, one_f_one_b(2, 2), x, data_parallel=x["data"].get_group()),
        "Pipeline's data_parallel does not compose with full sharding",
    ),
    "a mean over the tensor axis": (
        tensor_parallel,
        lambda m, x: piped([m], one_f_one_b(2, 2), x, "data", data_parallel=x["other"].get_group()),
        "Pipeline's data_parallel: .*slice, of tensor parallelism",
    ),
    "shared pieces of flats": (
        flat_stage,
        lambda m, x: piped(m, one_f_one_b(2, 2), x, shared=[(m[0][0].weight, x["other"].get_group())]),
        "shared: .*lie elsewhere in each stage's flat",
    ),
}  # fmt: skip


def batch(data=None, config=CONFIG):
    make = torch.Generator().manual_seed(1)
    x, y = (torch.randint(config.vocab, (4, 8), generator=make) for _ in range(2))
    return (x, y) if data is None else (x.chunk(2)[data], y.chunk(2)[data])


def refusals():
    mesh, said = axes(), {}
    for name, (build, wrong, _) in REFUSED.items():
        model = build(mesh)
        try:
            wrong(model, mesh)
            said[name] = "nothing"
        except ValueError as error:
            said[name] = str(error)
    return said


def test_what_would_be_wrong_in_silence_is_refused_on_every_rank():
    run = launch(refusals, 4)
    for name, (*_, words) in REFUSED.items():
        for said in run:
            assert re.search(words, said[name], re.S), (name, said[name])


class Halves(nn.Module):
    """Two layers, of which one is cut one way and the other another, each without hearing of the other."""

    def __init__(self, mesh, shard):
        super().__init__()
        torch.manual_seed(3)
        self.sharded, self.cut = nn.Linear(4, 5), nn.Linear(4, 6)
        if mesh is not None:
            self.sharded = shard(self.sharded, mesh=mesh["data"])
            self.cut = tp.ColumnParallelLinear(
                self.cut, mesh["other"].get_group(), gather_output=True
            )

    def loss(self, x):
        return self.sharded(x).pow(2).sum() + self.cut(x).pow(2).sum()


def halves(shard):
    mesh, x = axes(), torch.ones(2, 4)
    model, plain = Halves(mesh, shard), Halves(None, None)
    plain.loss(x).backward()
    model.loss(x).backward()
    for technique in (sharding, tp, ep):
        compare(technique.full_state_dict(model), plain.state_dict(), 0.0, "value")
        compare(technique.full_gradients(model), gradients_of(plain), 1e-6)
    return [
        (
            clip(model, 1e9, kind).item(),
            nn.utils.clip_grad_norm_(plain.parameters(), 1e9, kind).item(),
        )
        for clip in (tp.clip_grad_norm, ep.clip_grad_norm)
        for kind in (1.0, 2.0, math.inf)
    ]


@pytest.mark.parametrize("shard", [sharding.fully_shard, sharding.FullyShardedDataParallel])
def test_whoever_asks_gets_the_whole_of_what_others_have_cut(shard):
    for found in launch(halves, 4, shard):
        for mine, right in found:
            assert mine == pytest.approx(right, rel=1e-6)


def test_a_sharded_models_clip_sees_slices_that_came_later():
    def later():
        mesh = axes()
        model = flat_first(mesh)
        model.loss(*batch()).backward()
        before = model.clip_grad_norm_(1e9).item()
        layer = tp.ColumnParallelLinear(nn.Linear(16, 16).double(), mesh["other"].get_group())
        model.blocks[0].extra = layer
        layer.weight.grad = torch.ones_like(layer.weight)  # 256 ones, half of them on each rank
        return before, model.clip_grad_norm_(1e9).item()

    for before, after in launch(later, 4):
        assert after == pytest.approx(math.sqrt(before**2 + 256), rel=1e-6)


# --- what is right --------------------------------------------------------------------------------------------------


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def plain_steps(config):
    """One process on the whole batch: parameters after three steps, clipped in the middle one."""
    model = Transformer(config).double()
    optimizer, norms = sgd(model.parameters()), []
    for _ in range(3):
        optimizer.zero_grad()
        model.loss(*batch(config=config)).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
    return model.state_dict(), norms


def ddp_over_tensor(mesh, sequence=False):
    model = tensor_parallel(mesh)
    if sequence:
        parallelize_sequence(model, mesh["other"])
    wrapped = DistributedDataParallel(model, device_mesh=mesh["data"])
    return model, wrapped, sgd(model.parameters())


def steps_over_tensor(build):
    mesh = axes()
    model, wrapped, optimizer = build(mesh)
    x, y = batch(mesh["data"].get_local_rank())
    norms = []
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(x).flatten(0, 1), y.flatten()).backward()
        norms.append(tp.clip_grad_norm(model, 0.5))
        optimizer.step()
    return tp.full_state_dict(model), norms


@pytest.mark.parametrize(
    "build",
    [ddp_over_tensor, partial(ddp_over_tensor, sequence=True)],
    ids=["DDP", "DDP and sequence"],
)
def test_over_the_data_axis_of_tensor_parallelism_it_is_one_process(build):
    state, norms = plain_steps(CONFIG)
    assert min(norms) > 0.5, "clipping changes something"
    for found, theirs in launch(steps_over_tensor, 4, build):
        compare(found, state, 1e-10, "parameter")
        assert torch.allclose(torch.stack(theirs).double(), torch.stack(norms), rtol=1e-10)


# --- marks ----------------------------------------------------------------------------------------------------------


def marks():
    mesh = axes()
    group = mesh["other"].get_group()
    column = tp.ColumnParallelLinear(nn.Linear(4, 4), group)
    row = tp.RowParallelLinear(nn.Linear(4, 4), group)
    grid = tp.SummaLinear(nn.Linear(4, 4), mesh)
    moe = experts(mesh)
    expert = dict(moe.named_parameters())["blocks.0.mlp.experts.mine.up"]
    dtensor = nn.Parameter(distribute_tensor(torch.ones(4), mesh["data"]))
    cut = nn.Parameter(distribute_tensor(torch.ones(4), mesh["data"], [Shard(0)]))
    assert slices_of(pickle.loads(pickle.dumps(column.weight))) == [Slice(TENSOR, (None,))]
    alone = init_device_mesh("cpu", (4, 1), mesh_dim_names=("data", "other"))["other"].get_group()
    both = sharding.fully_shard(tensor_parallel(mesh), mesh=mesh["data"])
    weight, norm = both.blocks[0].mlp.up.weight, both.blocks[0].norm_1.weight
    data = mesh["data"].get_group()
    return {
        "column": slices_of(column.bias) == [Slice(TENSOR, (group,))],
        "row's weight": slices_of(row.weight) == [Slice(TENSOR, (group,))],
        "row's bias": slices_of(row.bias) == [],
        "grid": len(slices_of(grid.weight)[0].over) == 2 and len(slices_of(grid.bias)[0].over) == 1,
        "expert": slices_of(expert) == [Slice(EXPERT, (group,))],
        "flat": slices_of(next(flat_first(mesh).parameters()))[0].technique == FULL,
        "rows": slices_of(next(fully_shard_first(mesh).parameters()))[0].technique == FULL,
        "both": slices_of(weight) == [Slice(TENSOR, (group,)), Slice(FULL, (data,))],
        "one of both": slices_of(norm) == [Slice(FULL, (data,))],
        "torch's": slices_of(dtensor) == [],
        "torch's rows": slices_of(cut)[0].over == (data,),
        "one rank's": slices_of(tp.ColumnParallelLinear(nn.Linear(4, 4), alone).weight) == [],
    }


def test_what_is_a_slice_says_so():
    for found in launch(marks, 4):
        assert all(found.values()), found
