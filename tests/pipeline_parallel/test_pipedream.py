"""PipeDream on ranks against the paper's algorithm in one process (pipedream_reference.py),
to the last digits of double."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse import emulation
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.launch import launch
from dtcourse.pipeline_parallel import schedules
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.engine import Pipeline
from dtcourse.pipeline_parallel.pipedream import PipeDream, versions
from dtcourse.pipeline_parallel.simulate import Times, simulate
from dtcourse.profiling.memory_tracker import MemoryTracker
from tests.pipeline_parallel import pipedream_reference as reference
from tests.turns import taking_turns

WIDTH, LR = 5, 0.3


def stage(number: int) -> nn.Sequential:
    torch.manual_seed(100 + number)
    layers = nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()
    return nn.Sequential(*layers).double()


def batch(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(7)
    x, target = (torch.randn(samples, WIDTH, generator=made, dtype=torch.double) for _ in range(2))
    return x, target


def sgd(momentum: float):
    return partial(torch.optim.SGD, lr=LR, momentum=momentum)


def weights_of(module: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def trained(schedule: Schedule, samples: int, options: list[dict]) -> list[tuple]:
    """On a rank, for each of some options: weights, losses, the most versions held, the loss of an evaluation after."""
    found = []
    for option in options:
        option = dict(option)
        mine = [stage(s) for s in schedule.stages_of(dist.get_rank())]
        engine = PipeDream(mine, schedule, F.mse_loss, sgd(option.pop("momentum")), **option)
        losses = engine.run(*batch(samples))
        most = [one.most for one in engine.versions.values()]
        assert all(len(one.held) == 1 for one in engine.versions.values())
        found.append(
            ([weights_of(one) for one in mine], losses, most, engine.evaluate(*batch(samples)))
        )
    return found


def expected(p: int, m: int, samples: int, momentum: float, **option) -> tuple:
    def stashed(s: int, i: int) -> int:
        return max(0, i - (p - s) + 1)

    def synchronous(s: int, i: int) -> int:
        return max(0, i - p + 1)

    def latest(s: int, i: int) -> int:
        return i

    seen = synchronous if option.get("vertical_sync") else stashed
    back = seen if option.get("stash", True) else latest
    x, target = (one.tensor_split(m) for one in batch(samples))
    start = [weights_of(stage(s)) for s in range(p)]
    batches = list(zip(x, target, strict=True))
    return reference.train(start, batches, seen, back, LR, momentum)


def close(a, b) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


OPTIONS = [
    {"momentum": 0.0},
    {"momentum": 0.9},
    {"momentum": 0.9, "recompute": True},
    {"momentum": 0.0, "vertical_sync": True},
    {"momentum": 0.9, "vertical_sync": True},
    {"momentum": 0.9, "stash": False},
]


@pytest.mark.parametrize("p", [3, *taking_turns(2, 4, about="dtcourse/pipeline_parallel/")])
def test_it_is_the_papers_algorithm(p):
    m, samples = 3 * p, 7 * p + 1  # micro-batches of unequal size
    run = launch(trained, p, schedules.pipedream(p, m), samples, OPTIONS)
    for number, option in enumerate(OPTIONS):
        ends = expected(p, m, samples, **{k: v for k, v in option.items() if k != "recompute"})
        for s, want in enumerate(ends[0]):
            close(run[s][number][0][0], want)
        assert all(run[s][number][1] is None for s in range(p - 1))
        close(run[p - 1][number][1], ends[1])
        most = [run[s][number][2][0] for s in range(p)]
        if not option.get("stash", True):
            assert most == [1] * p
        else:
            assert most == ([p] * p if option.get("vertical_sync") else [p - s for s in range(p)])
        # An evaluation takes the latest weights, and the mean over samples.
        x, target = batch(samples)
        for want in ends[0]:
            x = reference.forward(want, x)[1]
        assert run[p - 1][number][3] == pytest.approx(F.mse_loss(x, target).item(), rel=1e-12)
    # Each is another algorithm: none of these agreements is for want of a difference.
    for one, other in ((0, 3), (1, 4), (1, 5), (0, 1)):
        a, b = (run[0][number][0][0][0] for number in (one, other))
        assert (a - b).abs().max() > 1e-6


def in_turn(m: int, samples: int, p: int) -> tuple:
    """SGD on one micro-batch after the other, by PyTorch."""
    model = nn.Sequential(*(stage(s) for s in range(p)))
    optimizer = sgd(0.9)(model.parameters())
    losses = []
    for x, target in zip(*(one.tensor_split(m) for one in batch(samples)), strict=True):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [weights_of(one) for one in model], losses


def without_flush(schedule: Schedule) -> Schedule:
    return replace(schedule, flush=False)


@pytest.mark.parametrize(
    "schedule",
    [
        without_flush(schedules.sequential(3, 5)),  # one micro-batch in flight
        schedules.pipedream(1, 5),  # one stage
        without_flush(schedules.interleaved_1f1b(2, 1, 2)),  # one micro-batch, two stages per rank
    ],
    ids=str,
)
def test_with_one_micro_batch_in_flight_it_is_sgd(schedule):
    p, m = schedule.num_stages, schedule.micro_batches
    options = [{"momentum": 0.9}, {"momentum": 0.9, "vertical_sync": True}]
    run = launch(trained, schedule.num_ranks, schedule, 11, options)
    weights, losses = in_turn(m, 11, p)
    for number in range(len(options)):
        for rank in range(schedule.num_ranks):
            for s, found in zip(schedule.stages_of(rank), run[rank][number][0], strict=True):
                close(found, weights[s])
        close(run[schedule.rank_of[-1]][number][1], losses)
        assert {most for rank in run for most in rank[number][2]} == {1}


def test_versions_are_read_off_the_schedule():
    schedule = schedules.pipedream(3, 6)
    assert versions(schedule, 0) == [0, 0, 0, 1, 2, 3]
    assert versions(schedule, 1) == [0, 0, 1, 2, 3, 4]
    assert versions(schedule, 2) == [0, 1, 2, 3, 4, 5]
    assert [versions(schedule, s, vertical_sync=True) for s in range(3)] == [
        versions(schedule, 0)
    ] * 3


def peak(schedule: Schedule, vertical_sync: bool) -> float:
    """The most bytes alive on this rank, in those of its weights."""
    wide = nn.Linear(128, 128, bias=False)
    engine = PipeDream([wide], schedule, F.mse_loss, sgd(0.0), vertical_sync=vertical_sync)
    x = torch.ones(schedule.micro_batches, 128)
    engine.run(x, x)
    with MemoryTracker(wide) as tracker:
        engine.run(x, x)
    return tracker.peak.bytes / wide.weight.nbytes


@pytest.mark.parametrize("vertical_sync", [False, True])
def test_bytes_alive_are_those_of_the_versions_in_flight_and_one_gradient(vertical_sync):
    p = 4
    found = launch(peak, p, schedules.pipedream(p, 12), vertical_sync)
    held = [p if vertical_sync else p - s for s in range(p)]
    for measured, n in zip(found, held, strict=True):
        assert n + 1 <= measured < n + 1.5  # activations of samples of one are the rest


class Costly(torch.optim.SGD):
    """An update takes the time of a product of matrices."""

    def step(self, closure=None):
        torch.ones(64, 64) @ torch.ones(64, 64)
        super().step(closure)


FLOPS, LATENCY, BANDWIDTH, SAMPLES = 1e9, 1e-5, 1e9, 8


def second_run(schedule: Schedule) -> float:
    stages = [nn.Linear(64, 64, bias=False)]
    engine = PipeDream(stages, schedule, lambda y, _: y.sum(), partial(Costly, lr=0.1))
    x = torch.ones(SAMPLES * schedule.micro_batches, 64)
    engine.run(x, x)
    dist.barrier()
    start = emulation.now()
    engine.run(x, x)
    return start


@pytest.mark.parametrize(("p", "m"), [(2, 5), (4, 8)])
def test_every_action_runs_when_the_simulator_says_updates_included(p, m):
    schedule = schedules.pipedream(p, m)
    run = launch(
        second_run,
        p,
        schedule,
        devices=EmulatedDevice(flops=FLOPS),
        network=EmulatedNetwork(latency=LATENCY, bandwidth=BANDWIDTH),
        record=True,
    )
    each, update = (2 * rows * 64**2 / FLOPS for rows in (SAMPLES, 64))
    transfer = LATENCY + SAMPLES * 64 * 4 / BANDWIDTH
    times = Times(each, [0.0] + [each] * (p - 1), each, transfer, optimizer=update)
    found = simulate(schedule, times)
    for rank, actions in enumerate(schedule):
        events = [e for e in run.timeline.of(rank=rank, kind="compute") if e.start >= max(run)]
        performed = [e for e in events if e.name[0].isdigit()]
        assert [e.name for e in performed] == list(map(repr, actions))
        for event, *expected in zip(performed, found.starts[rank], found.ends[rank], strict=True):
            measured = event.start - max(run), event.end - max(run)
            assert measured == pytest.approx(expected, rel=1e-9, abs=1e-12), event.name
        updates = [e for e in events if e.name == "optimizer"]
        assert len(updates) == m
        assert updates[-1].end - max(run) == pytest.approx(found.optimizer_ends[rank], rel=1e-9)
    assert found.makespan == max(found.optimizer_ends)


def mistakes() -> list[str]:
    linear, schedule = nn.Linear(4, 4), schedules.pipedream(1, 2)
    two = without_flush(schedules.interleaved_1f1b(1, 2, 2))
    calls = [
        lambda: PipeDream([linear], schedules.one_f_one_b(1, 2), F.mse_loss, sgd(0.0)),
        lambda: PipeDream(
            [linear], schedule, F.mse_loss, sgd(0.0), stash=False, vertical_sync=True
        ),
        lambda: PipeDream([linear, linear], two, F.mse_loss, sgd(0.0)),
        lambda: Pipeline([linear], schedule, F.mse_loss),
        lambda: PipeDream([nn.Tanh()], schedule, F.mse_loss, sgd(0.0)).run(
            torch.ones(2, 4), torch.ones(2, 4)
        ),
    ]
    said = []
    for call in calls:
        with pytest.raises(ValueError) as caught:
            call()
        said.append(str(caught.value))
    return said


def test_mistakes_are_told():
    ((flush, both, shared, other, untrained),) = launch(mistakes, 1)
    assert "1F1B updates all weights at once" in flush and "engine.Pipeline" in flush
    assert "vertical_sync needs the old versions" in both
    assert "Stages 0 and 1 share a parameter (stage 1's weight)" in shared
    assert "PipeDream updates weights after each micro-batch" in other
    assert "The loss depends on nothing to train: its 1 stage" in untrained
