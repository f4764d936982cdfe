"""What is less usual with a pipeline: backwards in two halves over each technique, and stages cut by themselves."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import launch
from dtcourse import tensor_parallel as tp
from dtcourse.expert_parallel import average_gradients, expert_parallel
from dtcourse.models import Experts, MoE, TopKGate
from dtcourse.pipeline_parallel import one_f_one_b, split
from tests.pairs.grid import Grid
from tests.pairs.grid_training import Training
from tests.pairs.test_mutations import DENSE, MIXED
from tests.pairs.test_three import STEPS, check, check_found

# Each value of each parameter is tried every time, their other combinations by turns (tests/turns.py).
pytestmark = pytest.mark.each_once("tests/pairs/", "dtcourse/parameters/")

ZB = [
    (Grid(data=2, pipe=2, outer="ZeRO-1", schedule="ZB-H1"), DENSE),
    (Grid(tensor=2, pipe=2, schedule="ZB-H1"), DENSE),
    (Grid(tensor=2, pipe=2, schedule="ZB-H1", sequence=True), DENSE),
    (Grid(expert=2, pipe=2, schedule="ZB-H1"), MIXED),
]


@pytest.mark.parametrize(("grid", "task"), ZB, ids=["ZeRO-1", "tensor", "sequence", "expert"])
def test_a_backward_in_two_halves(grid, task):
    check(grid, task)


class AfterTheSplit(Training):
    """Each stage is cut by itself. With experts the first rank's start of each stage is the truth's."""

    def is_first(self) -> bool:
        axes = ("data", "expert") if self.task.config.experts else ()
        return all(self.mesh.get_local_rank(axis) == 0 for axis in axes)

    def cut(self, model: Any) -> Any:
        return model

    def stages(self, *args: Any) -> Any:
        stages, plan = super().stages(*args), tp.transformer_plan(self.task.build())
        for stage in stages:
            if self.task.config.experts:
                expert_parallel(stage, self.mesh["data", "expert"], "expert")
            mine = {
                f"{place}.{name}": style
                for place, of_layer in stage.names_in_whole.items()
                for name, _ in stage.get_submodule(place).named_modules()
                for pattern, style in plan.items()
                if name and fnmatch.fnmatchcase(f"{of_layer}.{name}".lstrip("."), pattern)
            }
            if self.grid.tensor > 1:
                tp.parallelize(stage, mine, self.mesh["tensor"])
        return stages


def after_the_split(grid, task):
    return AfterTheSplit(grid, task).steps(range(STEPS))


GATES_IN_ONE = replace(MIXED, config=replace(MIXED.config, n_layers=1))  # the last stage has none


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
def test_a_stage_without_a_gate_starts_alike_too(schedule):
    grid = Grid(pipe=2, schedule=schedule, expert=2)
    check_found(grid, GATES_IN_ONE, launch(after_the_split, 4, grid, GATES_IN_ONE))


def stages_of_their_own(wider):
    """Rank 1's last stage is wider, or is not given out at all: what is said."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("expert",))
    mixture, schedule = MoE(TopKGate(4, 2, 1), Experts(2, 4, 3)), one_f_one_b(2, 2)
    layers = [mixture, nn.Linear(4, 5 + (wider and dist.get_rank()))]
    first, last = (split(layers, [range(1), range(1, 2)], schedule, rank)[0] for rank in range(2))
    expert_parallel(first, mesh)
    first(torch.ones(3, 4)).sum().backward()
    average_gradients(first, mesh)
    with pytest.raises(ValueError) as caught:
        expert_parallel(last, mesh) if wider else average_gradients(last, mesh)
    return str(caught.value)


@pytest.mark.parametrize(
    ("wider", "words"),
    [
        (
            True,
            r"built different models: rank 0 has 0.weight \[5, 4\] .*, rank 1 has 0.weight \[6, 4\]",
        ),
        (False, r"1.weight has not been through expert_parallel: .* for each stage of a pipeline"),
    ],
    ids=["another model", "left out"],
)
def test_a_stage_without_a_gate_is_asked_for(wider, words):
    for said in launch(stages_of_their_own, 2, wider):
        assert re.search(words, said), said


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
@pytest.mark.parametrize("inner", ["tensor", "expert"])
def test_stages_are_cut_after_the_split(inner, schedule):
    grid = Grid(pipe=2, schedule=schedule, **{inner: 2})
    task = MIXED if inner == "expert" else DENSE
    check_found(grid, task, launch(after_the_split, 4, grid, task))
