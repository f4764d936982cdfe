"""Replicas of a pipeline with two stages per rank: when each stage's reduction starts, what it sends, and that means
are, bit for bit, those of a reduction after the step.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import launch
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.pipeline_parallel import Pipeline, interleaved_1f1b, split
from dtcourse.pipeline_parallel.recorded import steps

WIDTH, MICRO_BATCHES = 8, 2
SCHEDULE = interleaved_1f1b(2, MICRO_BATCHES, 2)


def step(averaged: bool) -> dict[str, torch.Tensor]:
    """On each rank: gradients by layer, averaged by the pipeline or by hand after its step."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipeline"))
    rank, data = mesh.get_local_rank("pipeline"), mesh.get_group("data")
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)]
    stages = split(layers, [range(i, i + 1) for i in range(4)], SCHEDULE, rank)
    pipeline = Pipeline(
        stages,
        SCHEDULE,
        F.mse_loss,
        group=mesh.get_group("pipeline"),
        data_parallel=data if averaged else None,
    )
    x, target = torch.randn(2, 8, WIDTH)
    half = slice(4 * mesh.get_local_rank("data"), 4 * mesh.get_local_rank("data") + 4)
    pipeline.step(x[half], target[half])
    held = {f"{i}.{n}": p.grad for i in (rank, 2 + rank) for n, p in layers[i].named_parameters()}
    if not averaged:
        for grad in held.values():
            dist.all_reduce(grad.mul_(0.5), group=data)
    return held


@pytest.fixture(scope="module")
def runs():
    cluster = {
        "backend": "ring",
        "clock": "virtual",
        "devices": EmulatedDevice(1e9),
        "network": EmulatedNetwork(latency=1e-6),
        "device": "cpu",
        "timeout": 60,
        "record": True,
    }
    return {averaged: launch(step, 4, averaged, **cluster) for averaged in (True, False)}


def test_means_are_those_of_a_reduction_after_the_step_bit_for_bit(runs):
    for ours, by_hand in zip(runs[True], runs[False], strict=True):
        assert ours.keys() == by_hand.keys() and len(ours) == 4
        assert all(torch.equal(ours[name], by_hand[name]) for name in ours)
        assert all(grad.abs().max() > 0 for grad in ours.values())


def test_a_stages_reduction_starts_with_its_last_backward_beside_the_other_stage(runs):
    timeline = runs[True].timeline
    (actions,) = steps(timeline)
    for number in range(4):
        rank = number % 2  # of the pipeline
        at = {event.name: event for event in actions.of(rank=number)}
        reductions = sorted(e.start for e in _sent(timeline, number))
        later, earlier = at[f"{2 + rank}B1"], at[f"{rank}B1"]
        assert later.end <= reductions[0] < earlier.start, (
            "not before it is complete, and not after the step"
        )
        assert reductions[-1] >= earlier.end


def test_a_rank_sends_its_gradients_once_and_a_flag_for_each_parameter(runs):
    """Ring all-reduce on two ranks: each sends as many elements as the vector has."""
    for number in range(4):
        gradients, flags = 2 * (WIDTH * WIDTH + WIDTH), 2 * 2
        sent = sum(e.detail["elements"] for e in _sent(runs[True].timeline, number))
        assert sent == gradients + flags


def _sent(timeline, rank):
    """What a rank sends in all-reduces over the replicas."""
    return [
        event
        for event in timeline.of(rank=rank, name="send")
        if (event.detail.get("operation"), event.detail.get("axis")) == ("all_reduce", "data")
    ]
