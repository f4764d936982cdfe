"""Statistics of batch normalisation, another's on each rank: a checkpoint has those of one named rank, and a run that
resumes with as many ranks gets each rank's own back.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import checkpoint, launch
from dtcourse.fault_tolerance import Checkpoints, TrainingState
from dtcourse.pipeline_parallel import Pipeline, balance, one_f_one_b, split

OF_A_NORM = ("running_mean", "running_var", "num_batches_tracked")
NAMES = [f"{norm}.{name}" for norm in (0, 2) for name in OF_A_NORM]


def model(fill):
    """All its statistics are `fill`."""
    torch.manual_seed(0)
    made = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    for buffer in made.buffers():
        buffer.fill_(fill)
    return made


def state_of(made, layout):
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    return TrainingState.of(made, optimizer, layout=layout)


def statistics(made):
    return {name: buffer.view(-1)[0].item() for name, buffer in made.named_buffers()}


def save(folder):
    made = model(10 + dist.get_rank())
    checkpoint.save(folder / "plain", made)
    state = state_of(made, "replicas")
    Checkpoints(folder / "run").save(1, state.snapshot(), state.about())


def load(folder, layout="replicas"):
    plain, resumed = model(1), model(2)
    checkpoint.load(folder / "plain", plain)
    state_of(resumed, layout).load(Checkpoints(folder / "run").latest())
    return statistics(plain), statistics(resumed)


def test_a_checkpoint_has_all_statistics_of_the_lowest_rank(tmp_path):
    launch(save, 3, tmp_path)
    lowest = dict.fromkeys(NAMES, 10)
    for ranks in (1, 2):
        for found in launch(load, ranks, tmp_path):
            assert found == (lowest, lowest)
    for found in launch(load, 3, tmp_path, "another layout"):
        assert found == (lowest, lowest)


def test_with_as_many_ranks_and_the_same_layout_each_gets_its_own_back(tmp_path):
    launch(save, 3, tmp_path)
    for rank, (plain, resumed) in enumerate(launch(load, 3, tmp_path)):
        assert plain == dict.fromkeys(NAMES, 10)
        assert resumed == dict.fromkeys(NAMES, 10 + rank)


def save_stages(folder):
    """Two stages, each on two ranks: 0 and 1 have the first one's statistics, 2 and 3 the second one's."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    schedule = one_f_one_b(2, 2)
    parts = balance([1.0] * 4, 2)
    stages = split(model(dist.get_rank()), parts, schedule, mesh.get_local_rank("pp"))
    pipeline = Pipeline(stages, schedule, nn.functional.mse_loss, mesh.get_group("pp"))
    checkpoint.save(folder, pipeline.module)


def load_whole(folder):
    whole = model(9)
    checkpoint.load(folder, whole)
    return statistics(whole)


def test_of_a_pipeline_each_stages_are_of_its_lowest_rank(tmp_path):
    launch(save_stages, 4, tmp_path / "stages")
    found = launch(load_whole, 1, tmp_path / "stages")[0]
    assert found == {name: 0 if name.startswith("0") else 2 for name in NAMES}


def save_without(folder):
    """A file as it was before each rank's buffers were in it."""
    made = model(10 + dist.get_rank())
    state = state_of(made, "replicas")
    state._buffers = dict
    Checkpoints(folder / "run").save(1, state.snapshot(), state.about())
    checkpoint.save(folder / "plain", made)


def test_a_checkpoint_without_each_ranks_own_gives_all_the_lowest_ranks(tmp_path):
    launch(save_without, 2, tmp_path)
    for _, resumed in launch(load, 2, tmp_path):
        assert resumed == pytest.approx(dict.fromkeys(NAMES, 10))
