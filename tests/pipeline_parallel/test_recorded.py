"""A step's cost and bubble, read off its events: the simulator's own for its events, and for those of ranks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtcourse.emulation import EmulatedDevice
from dtcourse.events import Event, Timeline
from dtcourse.launch import launch
from dtcourse.pipeline_parallel.engine import Pipeline
from dtcourse.pipeline_parallel.recorded import bubble_rate, cost, steps
from dtcourse.pipeline_parallel.schedules import one_f_one_b
from dtcourse.pipeline_parallel.simulate import Times, simulate
from tests.pipeline_parallel.samples import MAKE


@pytest.mark.parametrize("name", MAKE)
def test_of_a_simulations_events_they_are_the_simulations(name):
    times = Times(1, 1.2, [0.7, 0.5, 0.7, 0.9], transfer=0.1, optimizer=0.5)
    found = simulate(MAKE[name](4, 8), times)
    assert cost(found.timeline) == pytest.approx(found.cost)
    assert bubble_rate(found.timeline) == pytest.approx(found.bubble_rate)


def two_steps() -> None:
    x = torch.ones(24, 8)
    stage = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8, bias=False))
    pipeline = Pipeline([stage], one_f_one_b(3, 6), lambda y, target: y.sum())
    for _ in range(2):
        pipeline.step(x, x)


def test_on_ranks_a_step_takes_what_was_simulated():
    forward = 2 * 4 * 8 * 8
    run = launch(two_steps, 3, devices=EmulatedDevice(flops=forward), device="cpu", record=True)
    found = simulate(one_f_one_b(3, 6), Times())
    assert cost(steps(run.timeline)[1]) == pytest.approx(found.cost)
    assert bubble_rate(steps(run.timeline)[1]) == pytest.approx(found.bubble_rate)


def test_events_without_a_pipeline_are_refused():
    with pytest.raises(ValueError, match="no action of a pipeline"):
        cost(Timeline([Event("forward", "compute", 0, 0.0, 1.0)]))
