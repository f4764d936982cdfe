"""The engine on emulated devices and links against the simulator: the same times, action by action."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import emulation
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.launch import launch
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.engine import Pipeline
from dtcourse.pipeline_parallel.simulate import Times, simulate
from tests.pipeline_parallel.samples import MAKE

WIDTH, SAMPLES, FLOPS, LATENCY, BANDWIDTH = 64, 8, 1e9, 1e-5, 1e9


def second_step(schedule: Schedule) -> float:
    """In the first step headers travel, too. When the second one starts."""
    stages = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in schedule.stages_of(dist.get_rank())]
    x = torch.ones(SAMPLES * schedule.micro_batches, WIDTH)
    pipeline = Pipeline(stages, schedule, lambda y, target: y.sum())
    pipeline.step(x, x)
    dist.barrier()
    start = emulation.now()
    pipeline.step(x, x)
    return start


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize(("p", "m"), [(2, 5), (4, 8), (8, 16)])
def test_every_action_runs_when_the_simulator_says(name, p, m):
    if name == "interleaved" and m % max(1, m // p):
        m = p
    schedule = MAKE[name](p, m)
    run = launch(
        second_step,
        p,
        schedule,
        devices=EmulatedDevice(flops=FLOPS),
        network=EmulatedNetwork(latency=LATENCY, bandwidth=BANDWIDTH),
        record=True,
        timeout=300,
    )
    each = 2 * SAMPLES * WIDTH**2 / FLOPS
    n = schedule.num_stages
    # Nobody wants the gradient of the first stage's input, and it is not computed.
    times = Times(
        [each] * n, [0.0] + [each] * (n - 1), [each] * n, LATENCY + SAMPLES * WIDTH * 4 / BANDWIDTH
    )
    found = simulate(schedule, times)
    for rank, actions in enumerate(schedule):
        measured = {
            one.name: (one.start - max(run), one.end - max(run))
            for one in run.timeline.of(rank=rank)
            if one.start >= max(run) and one.name[0].isdigit()
        }
        assert measured.keys() == set(map(repr, actions))
        for action, *expected in zip(actions, found.starts[rank], found.ends[rank], strict=True):
            assert measured[repr(action)] == pytest.approx(expected, rel=1e-9, abs=1e-12), action
