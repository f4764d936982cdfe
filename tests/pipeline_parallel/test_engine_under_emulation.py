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
from tests.turns import taking_turns

WIDTH, SAMPLES, FLOPS, LATENCY, BANDWIDTH = 64, 8, 1e9, 1e-5, 1e9


def second_steps(made: dict[str, Schedule]) -> dict[str, tuple[float, float]]:
    """Of each schedule, one after the other: when its second step starts, and when all of it is over."""
    return {name: (second_step(one), after_all()) for name, one in made.items()}


def after_all() -> float:
    dist.barrier()
    return emulation.now()


def second_step(schedule: Schedule) -> float:
    """In the first step headers travel, too. When the second one starts."""
    stages = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in schedule.stages_of(dist.get_rank())]
    x = torch.ones(SAMPLES * schedule.micro_batches, WIDTH)
    pipeline = Pipeline(stages, schedule, lambda y, target: y.sum())
    pipeline.step(x, x)
    start = after_all()
    pipeline.step(x, x)
    return start


@pytest.mark.parametrize(
    ("p", "m"),
    [(2, 5), (4, 8), *taking_turns((8, 16), about="dtcourse/pipeline_parallel/", several=True)],
)
def test_every_action_runs_when_the_simulator_says(p, m):
    divides = m % max(1, m // p) == 0
    made = {
        name: make(p, m if divides or name != "interleaved" else p) for name, make in MAKE.items()
    }
    run = launch(
        second_steps,
        p,
        made,
        devices=EmulatedDevice(flops=FLOPS),
        network=EmulatedNetwork(latency=LATENCY, bandwidth=BANDWIDTH),
        record=True,
        timeout=300,
    )
    for name, schedule in made.items():
        print(name)
        start = max(of_rank[name][0] for of_rank in run)
        end = max(of_rank[name][1] for of_rank in run)
        each = 2 * SAMPLES * WIDTH**2 / FLOPS
        n = schedule.num_stages
        # Nobody wants the gradient of the first stage's input, and it is not computed.
        message = LATENCY + SAMPLES * WIDTH * 4 / BANDWIDTH
        times = Times([each] * n, [0.0] + [each] * (n - 1), [each] * n, message)
        found = simulate(schedule, times)
        for rank, actions in enumerate(schedule):
            measured = {
                one.name: (one.start - start, one.end - start)
                for one in run.timeline.of(rank=rank)
                if start <= one.start < end and one.name[0].isdigit()
            }
            assert measured.keys() == set(map(repr, actions))
            for action, *expected in zip(
                actions, found.starts[rank], found.ends[rank], strict=True
            ):
                said = pytest.approx(expected, rel=1e-9, abs=1e-12)
                assert measured[repr(action)] == said, (name, action)
