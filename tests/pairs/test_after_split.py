"""What is less usual with a pipeline: backwards in two halves over each technique, and stages cut by themselves."""

from __future__ import annotations

import fnmatch
from typing import Any

import pytest

from dtcourse import launch
from dtcourse import tensor_parallel as tp
from dtcourse.expert_parallel import expert_parallel
from tests.pairs.grid import Grid, Training
from tests.pairs.test_mutations import DENSE, MIXED
from tests.pairs.test_three import STEPS, check, check_found

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
    """Each stage is cut by itself. One without experts is not given out, and so nobody makes its starts one."""

    def is_first(self) -> bool:
        return True

    def cut(self, model: Any) -> Any:
        return model

    def stages(self, *args: Any) -> Any:
        stages, plan = super().stages(*args), tp.transformer_plan(self.task.build())
        for stage in stages:
            if any(hasattr(module, "experts") for module in stage.modules()):
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


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
@pytest.mark.parametrize("inner", ["tensor", "expert"])
def test_stages_are_cut_after_the_split(inner, schedule):
    grid = Grid(pipe=2, schedule=schedule, **{inner: 2})
    task = MIXED if inner == "expert" else DENSE
    check_found(grid, task, launch(after_the_split, 4, grid, task))
