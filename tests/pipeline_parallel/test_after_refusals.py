"""After a step or an evaluation that was refused, the group serves any other one, of any Pipeline."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse.launch import launch
from dtcourse.pipeline_parallel import schedules
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.engine import Pipeline
from tests.pipeline_parallel.samples import MAKE
from tests.turns import taking_turns

WIDTH = 4


def pipeline_of(schedule: Schedule) -> tuple[Pipeline, nn.Sequential]:
    """A Pipeline of one layer per stage, and the whole model."""
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(schedule.num_stages))).double()
    stages = [model[stage] for stage in schedule.stages_of(dist.get_rank())]
    return Pipeline(stages, schedule, F.mse_loss), model


def batch(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(samples)
    x, target = torch.randn(2, samples, WIDTH, generator=made, dtype=torch.double)
    return x, target


def wrong(schedule: Schedule, pipeline: Pipeline, how: str) -> str:
    """A step that cannot be done; what this rank was told."""
    x, target = batch(2 * schedule.micro_batches)
    few = schedule.micro_batches - 1
    calls = {
        "x": lambda: pipeline.step(x[:few], target),
        "target": lambda: pipeline.step(x, target[:few]),
        "evaluated target": lambda: pipeline.evaluate(x, target[:few]),
    }
    try:
        calls[how]()
    except ValueError as error:
        return str(error)
    return ""


def right(schedule: Schedule, pipeline: Pipeline, model: nn.Sequential, samples: int) -> float:
    """The largest difference between the gradients of two steps and one process's."""
    largest = 0.0
    for _ in range(2):
        model.zero_grad()
        F.mse_loss(model(batch(samples)[0]), batch(samples)[1]).backward()
        expected = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        pipeline.step(*batch(samples))
        for parameter, one in zip(model.parameters(), expected, strict=True):
            if parameter.grad is not None:
                largest = max(largest, float((parameter.grad - one).abs().max()))
    return largest


def one_after_another(made: dict[str, Schedule], how: str) -> list[tuple[str, float]]:
    """Each schedule refused, then each other one twice; what was told, and how wrong the gradients were."""
    found = []
    for first, second in itertools.product(made, made):
        said = wrong(made[first], pipeline_of(made[first])[0], how)
        after = made[second]
        found.append((said, right(after, *pipeline_of(after), 2 * after.micro_batches + 1)))
    return found


@pytest.mark.parametrize(
    "how", ["target", *taking_turns("x", "evaluated target", about="dtcourse/pipeline_parallel/")]
)
def test_after_each_schedules_refused_step_each_other_schedule_trains(how):
    p, sizes = 3, (12, 6, 3)
    made = {
        f"{name} {m}": MAKE[name](p, m)
        for name, m in zip(
            ("GPipe", "interleaved", "1F1B", "ZB-V", "ZB-H1"), (*sizes, *sizes), strict=False
        )
    }
    made["DualPipe-V"] = MAKE["DualPipe-V"](p, 6)
    run = launch(one_after_another, p, made, how, timeout=240)
    for (first, second), told in zip(
        itertools.product(made, made), zip(*run, strict=True), strict=True
    ):
        print(first, "then", second)
        assert max(difference for _, difference in told) < 1e-12
        assert any("too few for" in said for said, _ in told)
        if not how.startswith("evaluated"):
            assert all("too few for" in said for said, _ in told)


def of_one_pipeline() -> list[str]:
    """All that a Pipeline can be asked after refusals of all kinds, and each kind after each."""
    schedule = schedules.one_f_one_b(3, 4)
    pipeline, model = pipeline_of(schedule)
    said = []
    for how in (
        "target",
        "evaluated target",
        "x",
        "evaluated target",
        "evaluated target",
        "target",
    ):
        said.append(wrong(schedule, pipeline, how))
        assert right(schedule, pipeline, model, 8) < 1e-12
        pipeline.evaluate(*batch(8))
    return said


def test_steps_and_evaluations_of_one_pipeline_go_on():
    run = launch(of_one_pipeline, 3, timeout=120)
    for rank, said in enumerate(run):
        for how, words in zip(("target", "", "x", "", "", "target"), said, strict=True):
            assert ("too few for 4 micro-batches" in words) == (bool(how) or rank == 2)


def evaluated(width: int) -> str:
    """Only the last rank refuses; messages too large for any buffer in between."""
    schedule = schedules.one_f_one_b(dist.get_world_size(), 4)
    stage = nn.Linear(width, width)
    pipeline, x = Pipeline([stage], schedule, F.mse_loss), torch.randn(8, width)
    pipeline.step(x, x)
    try:
        pipeline.evaluate(x, x[:2])
    except ValueError as error:
        return str(error)
    return "went on"


@pytest.mark.parametrize("width", [4, 3000])
def test_an_evaluation_that_only_the_last_rank_refuses_keeps_nobody_waiting(width):
    *others, last = launch(evaluated, 3, width, timeout=60)
    assert others == ["went on"] * 2 and last.startswith("target has 2 samples")
