"""Simulations, schedules and runs as pictures: what is drawn is what was simulated or run."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import plots
from dtcourse.emulation import EmulatedDevice
from dtcourse.events import span, timeline_of
from dtcourse.launch import launch
from dtcourse.pipeline_parallel.actions import BACKWARD, Schedule
from dtcourse.pipeline_parallel.engine import Pipeline
from dtcourse.pipeline_parallel.recorded import steps
from dtcourse.pipeline_parallel.schedules import one_f_one_b
from dtcourse.pipeline_parallel.simulate import Memory, Times, simulate
from dtcourse.plots.schedule_pictures import boxes_of, idle_shares
from tests.pipeline_parallel.samples import MAKE


@pytest.mark.parametrize("name", MAKE)
def test_the_picture_of_a_simulation_has_its_idle_share(name):
    schedule = MAKE[name](4, 8)
    found = simulate(schedule, Times(1, 1.2, 0.7, transfer=0.1, optimizer=0.5))
    boxes = boxes_of(found.timeline)
    assert len(boxes) == sum(map(len, schedule)) + 4
    assert list(idle_shares(boxes).values()) == pytest.approx(found.idle_share)
    assert max(box.end for box in boxes) == pytest.approx(found.makespan)
    chunks = {box.level for box in boxes if box.action != "optimizer"}
    assert chunks == set(range(schedule.num_chunks))


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("kept", [None, 0.3])
def test_memory_over_time_has_the_simulations_peak(name, kept):
    found = simulate(MAKE[name](4, 8), Times(1, 1.2, 0.7), Memory(1, kept))
    for rank, levels in enumerate(found.memory_levels):
        assert max(stored for _, stored in levels) == pytest.approx(found.peak_memory[rank])
        assert levels[-1] == (found.ends[rank][-1], pytest.approx(0))
        assert [at for at, _ in levels] == sorted(at for at, _ in levels)


def test_a_schedule_is_drawn_as_in_the_papers():
    schedule = one_f_one_b(4, 8)
    whole = [one for one in timeline_of(schedule) if one.detail["action"] == "backward"]
    assert {one.seconds for one in whole} == {2}
    ax = plots.schedules(schedule).axes[0]
    assert ax.get_title(loc="left") == "1F1B: 33"
    assert ax.get_xlabel() == "time (forwards of one rank)"
    assert plots.schedules({"a": schedule, "b": simulate(schedule, Times())})


def two_steps(schedule: Schedule) -> None:
    stages = [nn.Linear(4, 4) for _ in schedule.stages_of(dist.get_rank())]
    pipeline = Pipeline(stages, schedule, lambda y, target: y.sum())
    x = torch.ones(schedule.micro_batches, 4)
    for _ in range(2):
        pipeline.step(x, x)
        with span("optimizer"):
            pass
        pipeline.evaluate(x, x)


def test_the_steps_of_a_run_are_told_apart_and_drawn_beside_the_simulation():
    schedule = MAKE["ZB-V"](2, 4)
    run = launch(two_steps, 2, schedule, record=True, devices=EmulatedDevice(flops=1e6))
    parts = steps(run.timeline)
    for rank, actions in enumerate(schedule):
        # Sorted: what takes no time (the gradient of stage 0's input) starts with what comes after it.
        trained = sorted([*map(repr, actions), "optimizer"])
        evaluated = sorted(repr(one) for one in actions if one.kind == "F")
        assert [sorted(part.order(rank)) for part in parts] == [trained, evaluated] * 2
    assert {one.detail["action"] for one in parts[0].of(rank=0) if one.detail} == {
        "forward", "backward-input", "backward-weight"
    }  # fmt: skip
    assert not any(one.kind == BACKWARD for rank in schedule for one in rank)
    picture = plots.schedules({"simulated": simulate(schedule, Times()), "run": parts[-2]})
    assert len(picture.axes) == 2
