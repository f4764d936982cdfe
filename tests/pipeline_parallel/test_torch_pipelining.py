"""The engine against torch.distributed.pipelining: losses, gradients, messages and memory of the same schedules."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import pipelining

from dtcourse.collectives import traffic
from dtcourse.launch import launch
from dtcourse.pipeline_parallel.actions import Schedule, needed_by
from dtcourse.pipeline_parallel.balance import balance
from dtcourse.pipeline_parallel.engine import Pipeline, split
from tests.pipeline_parallel.samples import MAKE
from tests.turns import taking_turns

TORCHS = {
    "GPipe": pipelining.ScheduleGPipe,
    "1F1B": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "breadth-first": pipelining.ScheduleLoopedBFS,
    "ZB-H1": pipelining.ScheduleInterleavedZeroBubble,  # with one stage a rank
    "ZB-V": pipelining.ScheduleZBVZeroBubble,
    "DualPipe-V": pipelining.ScheduleDualPipeV,
}
WIDTH, SAMPLES, STEPS = 6, 24, 3
approx = partial(pytest.approx, rel=1e-12)


def layers() -> nn.Sequential:
    """Eight layers that can be cut anywhere."""
    torch.manual_seed(5)
    made: list[nn.Module] = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(7)]
    made[2] = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))
    made[3] = nn.Sequential(nn.Linear(WIDTH, 10, bias=False), nn.GELU(), nn.Linear(10, WIDTH))
    return nn.Sequential(*made, nn.Linear(WIDTH, 3)).double()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, WIDTH, generator=made, dtype=torch.double)
    return x, torch.randint(3, (SAMPLES,), generator=made)


def ours(name: str, schedule: Schedule, stages: list[nn.Sequential]) -> Callable[[], Any]:
    """A step: the mean loss on the last stage's rank, None elsewhere."""
    pipeline = Pipeline(stages, schedule, F.cross_entropy)
    return lambda: pipeline.step(*batch())


def torchs(name: str, schedule: Schedule, stages: list[nn.Sequential]) -> Callable[[], Any]:
    """The same by PyTorch: it returns the micro-batches' losses, and divides gradients by their number at the end."""
    numbers = schedule.stages_of(dist.get_rank())
    wrapped: list[Any] = [
        pipelining.PipelineStage(stage, number, schedule.num_stages, torch.device("cpu"))
        for stage, number in zip(stages, numbers, strict=True)
    ]
    single = issubclass(TORCHS[name], pipelining.schedules.PipelineScheduleSingle)
    theirs: Any = TORCHS[name](
        wrapped[0] if single else wrapped, schedule.micro_batches, loss_fn=F.cross_entropy
    )

    def step() -> float | None:
        losses: list[torch.Tensor] = []
        x, target = batch()
        theirs.step(*(x,) * (0 in numbers), target=target, losses=losses)
        return torch.stack(losses).mean().item() if losses else None

    return step


def train(make: Callable[..., Callable[[], Any]], name: str, schedule: Schedule) -> dict[str, Any]:
    """What a rank meets: losses and gradients of every step; messages and bytes sent in each."""
    ranges = balance([1.0] * 8, schedule.num_stages)
    stages = split(layers(), ranges, schedule, dist.get_rank())
    step = make(name, schedule, stages)
    optimizer = torch.optim.SGD([p for stage in stages for p in stage.parameters()], lr=0.5)
    found: dict[str, Any] = {"loss": [], "gradients": [], "sent": []}
    for _ in range(STEPS):
        optimizer.zero_grad()
        with traffic.counting() as counted:
            found["loss"].append(step())
        found["sent"].append((counted.messages_sent(), counted.bytes_sent()))
        found["gradients"].append(
            [copy.deepcopy(p.grad) for stage in stages for p in stage.parameters()]
        )
        optimizer.step()
    return found


def both(micro_batches: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Every schedule, ours and PyTorch's."""
    result = {}
    for name in TORCHS:
        schedule = MAKE[name](dist.get_world_size(), micro_batches)
        result[name] = train(ours, name, schedule), train(torchs, name, schedule)
    return result


def crossings(schedule: Schedule, rank: int) -> int:
    """How many of a rank's actions make something for another rank."""
    to = [needed_by(action, schedule.num_stages) for action in schedule.ranks[rank]]
    return sum(stage is not None and schedule.rank_of[stage] != rank for stage in to)


# Our own backend, because it counts the messages of both. Sixths are not exact.
@pytest.mark.parametrize(
    ("ranks", "micro_batches"),
    [(4, 8), *taking_turns((2, 6), about="dtcourse/pipeline_parallel/", several=True)],
)
def test_losses_gradients_and_messages_are_pytorchs(ranks, micro_batches):
    run = launch(both, ranks, micro_batches, backend="ring")
    for name in TORCHS:
        schedule, parameters, told = MAKE[name](ranks, micro_batches), 0, []
        for rank, (mine, theirs) in enumerate(found[name] for found in run):
            told += [mine["loss"]] * (mine["loss"][0] is not None)
            assert mine["loss"] == [one if one is None else approx(one) for one in theirs["loss"]]
            for step in range(STEPS):
                for a, b in zip(mine["gradients"][step], theirs["gradients"][step], strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
            # In the first step headers travel here, and descriptions of all inputs and outputs there.
            messages = crossings(schedule, rank)
            steady = (messages, messages * SAMPLES // micro_batches * WIDTH * 8)
            assert mine["sent"][1:] == theirs["sent"][1:] == [steady] * (STEPS - 1)
            parameters += len(mine["gradients"][0])
        # Nothing was left out: one rank knows the loss, which falls, and each parameter is somewhere.
        assert len(told) == 1 and told[0] == sorted(told[0], reverse=True)
        assert parameters == len(list(layers().parameters()))
