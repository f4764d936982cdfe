"""PipeDream over another technique: its updates follow each backward at once, so what has to happen between a backward
and its update happens by itself, or is refused.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import launch, sharding
from dtcourse import tensor_parallel as tp
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.expert_parallel import expert_parallel
from dtcourse.parameters.whole import full_state_dict
from dtcourse.pipeline_parallel import PipeDream, layers_of, split, zb_h1
from dtcourse.pipeline_parallel.schedules import pipedream
from dtcourse.sequence_parallel import parallelize_sequence
from dtcourse.verify import compare
from tests.pairs.layouts import GPT2, batch
from tests.pairs.pipelines import EXPERTS, build, loss

UNTIED = replace(GPT2, tied=False)
STEPS, MICRO_BATCHES = 2, 4


def nothing(model, mesh):
    return model


def tensor(model, mesh):
    return tp.parallelize(model, tp.transformer_plan(model), mesh)


def sequence(model, mesh):
    return parallelize_sequence(tensor(model, mesh), mesh)


def engine_of(cut, mesh, config=UNTIED, wrap=None, optimizer=None, schedule=None):
    schedule = schedule or pipedream(2, MICRO_BATCHES)
    layers = layers_of(cut(build(config), mesh["other"]))
    ranges = [range(2), range(2, 4)]
    stages = split(layers, ranges, schedule, mesh["pipe"].get_local_rank())
    if wrap is not None:
        stages = [wrap(stage, mesh["other"]) for stage in stages]
    sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    return PipeDream(stages, schedule, loss, optimizer or sgd, mesh.get_group("pipe"))


def mesh_of(others):
    return init_device_mesh("cpu", (others, 2), mesh_dim_names=("other", "pipe"))


def trained(cut, others):
    engine = engine_of(cut, mesh_of(others))
    losses = [engine.run(*batch(UNTIED, step)) for step in range(STEPS)]
    return full_state_dict(engine.module), losses


@pytest.mark.parametrize("cut", [tensor, sequence])
def test_it_is_the_same_over_tensor_and_sequence_parallelism(cut):
    """As two ranks without: those are the paper's algorithm (tests/pipeline_parallel/test_pipedream.py)."""
    right, losses = launch(trained, 2, nothing, 1)[1]
    for rank, (state, mine) in enumerate(launch(trained, 4, cut, 2)):
        compare(state, right, 1e-12, "value", norm=2)
        if rank % 2:
            for found, theirs in zip(mine, losses, strict=True):
                assert found == pytest.approx(theirs, rel=1e-12)


def zero1(parameters, group):
    return sharding.ZeroRedundancyOptimizer(parameters, torch.optim.SGD, group, lr=0.1)


REFUSED = {
    "PipeDream over full sharding": (
        lambda mesh: engine_of(nothing, mesh, wrap=lambda s, m: sharding.fully_shard(s, mesh=m)),
        "PipeDream does not compose with full sharding",
    ),
    "FullyShardedDataParallel": (
        lambda mesh: engine_of(
            nothing, mesh, wrap=lambda s, m: sharding.FullyShardedDataParallel(s, mesh=m)
        ),
        "PipeDream does not compose with full sharding",
    ),
    "PipeDream over expert": (
        lambda mesh: engine_of(expert_parallel, mesh, replace(EXPERTS, tied=False)),
        "PipeDream does not compose with expert parallelism.*nobody does",
    ),
    "DistributedDataParallel": (
        lambda mesh: engine_of(
            nothing, mesh, wrap=lambda s, m: DistributedDataParallel(s, device_mesh=m)
        ),
        "PipeDream does not compose with DistributedDataParallel",
    ),
    "PipeDream over split backward": (
        lambda mesh: engine_of(nothing, mesh, schedule=zb_h1(2, MICRO_BATCHES)),
        "ZB-H1 updates all weights at once, after the last backward: use engine.Pipeline",
    ),
    "ZeRO-1": (
        lambda mesh: engine_of(
            nothing, mesh, optimizer=lambda weights: zero1(weights, mesh.get_group("other"))
        ),
        "PipeDream does not compose with ZeroRedundancyOptimizer",
    ),
}


def refusals():
    mesh, said = mesh_of(2), {}
    for name, (build_it, _) in REFUSED.items():
        try:
            build_it(mesh)
            said[name] = "nothing"
        except ValueError as error:
            said[name] = str(error)
    return said


def test_what_needs_a_mean_or_a_gather_before_each_update_is_refused():
    for found in launch(refusals, 4):
        for name, (_, words) in REFUSED.items():
            assert re.search(words, found[name], re.S), (name, found[name])
