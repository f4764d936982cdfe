"""The engine against one process: every schedule, gradients of every parameter, bytes, live activations, order."""

from __future__ import annotations

import os
import weakref
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dtcourse.launch import RankFailure, launch
from dtcourse.pipeline_parallel import schedules, zero_bubble
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.balance import balance
from dtcourse.pipeline_parallel.engine import Pipeline, split
from dtcourse.verify.gradients import gradients_of
from tests.pipeline_parallel.samples import MAKE


def layers() -> nn.Sequential:
    """Eight layers that can be cut anywhere; one is frozen, one normalises."""
    torch.manual_seed(5)
    made = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(7)]
    made[2] = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6))
    made[4][0].weight.requires_grad_(False)
    return nn.Sequential(*made, nn.Linear(6, 3)).double()


def batch(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(7)
    x = torch.randn(samples, 6, generator=made, dtype=torch.double)
    return x, torch.randint(3, (samples,), generator=made)


def one_process(samples: int, steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch(samples)[0]), batch(samples)[1])
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return losses, values_of(model)


def values_of(model: nn.Module) -> dict[str, torch.Tensor | None]:
    """Parameters and gradients by name."""
    gradients = {f"{name} gradient": value for name, value in gradients_of(model).items()}
    return {**model.state_dict(), **gradients}


def cut(schedule: Schedule, rank: int) -> tuple[list[nn.Sequential], list[range]]:
    ranges = balance([1.0] * 8, schedule.num_stages)
    return split(layers(), ranges, schedule, rank), ranges


def train(schedule: Schedule, samples: int, steps: int, recompute: bool):
    """On a rank: losses; and what it holds, by the names of the whole model."""
    stages, ranges = cut(schedule, dist.get_rank())
    pipeline = Pipeline(stages, schedule, F.cross_entropy, recompute=recompute)
    parameters = [p for stage in stages for p in stage.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(pipeline.step(*batch(samples)))
        optimizer.step()
    assert not pipeline.mail.arrived and not pipeline.mail.coming and not pipeline.mail.going
    held = {}
    for stage, number in zip(stages, schedule.stages_of(dist.get_rank()), strict=True):
        for name, value in values_of(stage).items():
            at, _, rest = name.partition(".")
            held[f"{ranges[number][int(at)]}.{rest}"] = value
    return losses, held, pipeline.evaluate(*batch(samples))


def train_each(made: dict[str, Schedule], samples: int, steps: int):
    """On a rank: what each schedule's training leaves, by its name."""
    return {name: train(one, samples, steps, name == "1F1B") for name, one in made.items()}


@pytest.mark.parametrize(("p", "m"), [(1, 2), (2, 4), (3, 6), (4, 8), (4, 1), (2, 3)])
def test_each_schedule_trains_as_one_process(p, m):
    fits = [name for name in MAKE if name != "DualPipe-V" or m >= 2 * p]
    made = {name: MAKE[name](p, m) for name in fits}
    made = {name: one for name, one in made.items() if one.num_stages <= len(layers())}
    assert len(made) >= 5
    samples, steps = 13, 2  # no number of micro-batches but 1 divides 13
    losses, expected = one_process(samples, steps)
    run = launch(train_each, p, made, samples, steps, record=True)
    for name in made:
        print(name)
        trained_as(losses, expected, [of_rank[name] for of_rank in run], samples)


def trained_as(losses, expected, run, samples):
    """Whether the ranks of a run found these losses and hold these values."""
    held = {key: value for one in run for key, value in one[1].items()}
    assert held.keys() == expected.keys()
    for key, value in expected.items():
        if value is None:
            assert held[key] is None, key
        else:
            torch.testing.assert_close(held[key], value, rtol=1e-12, atol=1e-13)
    told = [one[0] for one in run if one[0][0] is not None]
    assert len(told) == 1
    assert told[0] == pytest.approx(losses, rel=1e-12)
    with torch.no_grad():
        model = layers()
        model.load_state_dict({key: held[key] for key in model.state_dict()})
        expected_loss = F.cross_entropy(model(batch(samples)[0]), batch(samples)[1]).item()
    assert [one[2] for one in run if one[2] is not None] == [pytest.approx(expected_loss)]


def test_the_order_of_events_is_the_schedules_and_bytes_are_those_of_the_borders():
    schedule, samples = zero_bubble.zb_h1(3, 4), 12
    run = launch(train, 3, schedule, samples, 1, False, record=True)
    for rank, actions in enumerate(schedule):
        performed = [one for one in run.timeline.order(rank) if one[0].isdigit()]
        assert performed[: len(actions)] == list(map(repr, actions))
    # An evaluation follows: forwards once more. Headers: twelve integers per activation, in the first step of each.
    border, header = samples * 6 * 8, 4 * 12 * 8
    sent = [run.traffic.bytes_sent(rank=rank) for rank in range(3)]
    assert sent == [2 * (border + header), 3 * border + 2 * header, border]


def test_where_both_stages_are_on_one_rank_nothing_is_sent():
    run = launch(train, 1, zero_bubble.zb_v(1, 3), 6, 1, False, record=True)
    assert run.traffic.rows == []


class Token:
    pass


class Watched(torch.autograd.Function):
    """Identity, whose node in the graph holds a token for as long as it lives."""

    @staticmethod
    def forward(ctx, x, alive):
        ctx.token = Token()
        alive.add(ctx.token)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return dy, None


class Counting(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.alive, self.peak = weakref.WeakSet(), 0

    def forward(self, x):
        y = Watched.apply(torch.tanh(self.linear(x)), self.alive)
        self.peak = max(self.peak, len(self.alive))
        return y


def peaks(schedule: Schedule, recompute: bool) -> int:
    """The most graphs of forwards that this rank had at once, in all its stages."""
    stages = [Counting(4) for _ in schedule.stages_of(dist.get_rank())]
    alive = weakref.WeakSet()
    for stage in stages:
        stage.alive = alive
    Pipeline(stages, schedule, F.mse_loss, recompute=recompute).step(
        torch.randn(8, 4), torch.randn(8, 4)
    )
    assert not alive
    return max(stage.peak for stage in stages)


@pytest.mark.parametrize("name", ["sequential", "GPipe", "1F1B", "interleaved", "breadth-first"])
def test_graphs_alive_are_the_schedules_bound(name):
    schedule = MAKE[name](3, 6)
    bound = [int(one * schedule.num_chunks) for one in schedule.memory_bound]
    assert list(launch(peaks, 3, schedule, False)) == bound
    assert set(launch(peaks, 3, schedule, True)) == {1}


@pytest.mark.parametrize("name", ["ZB-H1", "ZB-V"])
def test_a_half_backward_frees_the_graph(name):
    schedule = MAKE[name](3, 6)
    found = list(launch(peaks, 3, schedule, False))
    assert all(
        a <= b * schedule.num_chunks for a, b in zip(found, schedule.memory_bound, strict=True)
    )
    # The last rank keeps weight gradients back, and no graph for them.
    assert name != "ZB-H1" or found == [3, 2, 1]


def most_on_their_way(schedules: list[Schedule]) -> list[int]:
    """On a rank, by schedule: the most messages that it kept at once, as not yet received."""
    found = []
    for schedule in schedules:
        pipeline = Pipeline(cut(schedule, dist.get_rank())[0], schedule, F.cross_entropy)
        held, start = [0], pipeline.mail._start_to_send

        def counted(*message, held=held, start=start, mail=pipeline.mail):
            start(*message)
            held.append(len(mail.going))

        pipeline.mail._start_to_send = counted
        pipeline.step(*batch(24))
        found.append(max(held))
    return found


@pytest.mark.parametrize("name", ["1F1B", "ZB-H1", "ZB-V"])
def test_what_has_been_received_is_kept_no_longer(name):
    """More micro-batches are not more messages in memory: gloo itself never says that a send is complete."""
    short, long = zip(
        *launch(most_on_their_way, 4, [MAKE[name](4, m) for m in (8, 24)]), strict=True
    )
    assert short == long and max(short) <= 8, (short, long)


def with_dropout(recompute: bool) -> list[torch.Tensor]:
    torch.manual_seed(3)
    stage = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 4))
    torch.manual_seed(10 + dist.get_rank())
    pipeline = Pipeline([stage], schedules.one_f_one_b(2, 3), F.mse_loss, recompute=recompute)
    pipeline.step(torch.ones(6, 4), torch.zeros(6, 4))
    return [p.grad for p in stage.parameters()] + [torch.rand(1)]


def test_recomputed_forwards_meet_the_same_random_numbers():
    once, twice = (launch(with_dropout, 2, recompute) for recompute in (False, True))
    for rank in range(2):
        assert all(map(torch.equal, once[rank], twice[rank]))


class Head(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return F.linear(x, self.weight).transpose(1, 2)


def tied(schedule: Schedule, share: bool):
    """First and last stage use one table: two copies on two ranks, one parameter on one."""
    torch.manual_seed(1)
    embed, middle = nn.Embedding(7, 4).double(), nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()
    head = Head(
        embed.weight
        if schedule.rank_of[0] == schedule.rank_of[-1]
        else nn.Parameter(embed.weight.detach().clone())
    )
    own = {0: embed, schedule.num_stages - 1: head}
    stages = [
        own.get(s, middle if s == 1 else nn.Identity()) for s in schedule.stages_of(dist.get_rank())
    ]
    ends = dist.new_group([0, dist.get_world_size() - 1])
    weight = {0: embed.weight, dist.get_world_size() - 1: head.weight}.get(dist.get_rank())
    shared = [(weight, ends)] if share and weight is not None else []
    tokens = torch.arange(30).reshape(6, 5) % 7
    pipeline = Pipeline(stages, schedule, F.cross_entropy, shared=shared)
    for _ in range(2):  # a second step adds its gradient to the first one's
        pipeline.step(tokens, tokens.flip(1))
    return None if weight is None else weight.grad / 2


def test_tied_weights_get_both_gradients():
    torch.manual_seed(1)
    embed, middle = nn.Embedding(7, 4).double(), nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()
    tokens = torch.arange(30).reshape(6, 5) % 7
    F.cross_entropy(Head(embed.weight)(middle(embed(tokens))), tokens.flip(1)).backward()
    run = launch(tied, 3, schedules.one_f_one_b(3, 4), True)
    for grad in (run[0], run[2]):
        torch.testing.assert_close(grad, embed.weight.grad, rtol=1e-12, atol=1e-14)
    alone = launch(tied, 3, schedules.one_f_one_b(3, 4), False)
    torch.testing.assert_close(alone[0] + alone[2], embed.weight.grad, rtol=1e-12, atol=1e-14)
    assert not torch.allclose(alone[0], alone[2])


def unused_copy() -> torch.Tensor:
    """Rank 1 holds a copy of rank 0's weight and does not use it."""
    rank, stage = dist.get_rank(), nn.Linear(2, 2, bias=False).double()
    nn.init.ones_(stage.weight)
    copy = stage.weight if rank == 0 else nn.Parameter(stage.weight.detach().clone())
    x = torch.ones(2, 2).double()
    Pipeline(
        [stage], schedules.one_f_one_b(2, 2), F.mse_loss, shared=[(copy, dist.group.WORLD)]
    ).step(x, x)
    return copy.grad


def test_a_copy_that_one_rank_does_not_use_gets_the_others_gradient():
    first, second = launch(unused_copy, 2, timeout=60)
    assert torch.equal(first, second) and first.abs().min() > 0


def two_axes() -> dict[str, torch.Tensor]:
    """Two pipelines of two stages, each with half of the batch."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipeline"))
    schedule = zero_bubble.zb_h1(2, 3)
    pipeline_rank = mesh.get_local_rank("pipeline")
    ranges = balance([1.0] * 8, 2)
    stages = split(layers(), ranges, schedule, pipeline_rank)
    pipeline = Pipeline(
        stages,
        schedule,
        F.cross_entropy,
        group=mesh.get_group("pipeline"),
        data_parallel=mesh.get_group("data"),
    )
    x, target = batch(12)
    half = slice(6 * mesh.get_local_rank("data"), 6 * mesh.get_local_rank("data") + 6)
    pipeline.step(x[half], target[half])
    held = values_of(stages[0])
    return {f"{ranges[pipeline_rank][int(k[0])]}{k[1:]}": held[k] for k in held if "gradient" in k}


def test_with_data_parallelism_gradients_are_averaged_once():
    model = layers()
    F.cross_entropy(model(batch(12)[0]), batch(12)[1]).backward()
    expected = values_of(model)
    run = launch(two_axes, 4, record=True)
    for held in run:
        for key, value in held.items():
            if value is None:
                assert expected[key] is None
            else:
                torch.testing.assert_close(value, expected[key], rtol=1e-12, atol=1e-14)
    assert len({key for held in run for key in held}) == len(
        [k for k in expected if "gradient" in k]
    )


def mistakes() -> list[str]:
    """What rank 0 and 1 are told of calls that cannot work; each rank makes all of them."""
    schedule, linear = schedules.one_f_one_b(2, 4), nn.Linear(4, 4)
    x = torch.ones(8, 4)
    calls = [
        lambda: Pipeline([linear], schedules.one_f_one_b(3, 4), F.mse_loss),
        lambda: Pipeline([linear, linear], schedule, F.mse_loss),
        lambda: Pipeline([linear], schedules.pipedream(2, 4), F.mse_loss),
        lambda: Pipeline([linear], replace(schedule, memory_bound=[1, 1]), F.mse_loss),
        lambda: Pipeline([linear], schedule, F.mse_loss).step(x[:3], x[:3]),
        lambda: Pipeline([linear], schedule, F.mse_loss).step([1, 2], [1, 2]),
    ]
    said = []
    for call in calls:
        with pytest.raises(ValueError) as caught:
            call()
        said.append(str(caught.value))
    return said


def test_mistakes_are_told_with_their_numbers():
    run = launch(mistakes, 2)
    ranks, stages, pipedream, memory, samples, kind = run[0]
    assert "is for 3 ranks, and the group has 2" in ranks
    assert "Rank 0 holds 1 stage in" in stages and "(stages [0]); got 2" in stages
    assert "PipeDream updates weights after each micro-batch" in pipedream
    assert "rank 0 stores 2 at once, of 1 that it may" in memory
    assert samples == "x has 3 samples, too few for 4 micro-batches of one sample or more."
    assert kind == "x is a tensor or a tuple of tensors; got list."
    assert run[1][4].startswith("target has 3 samples")


@pytest.mark.parametrize(
    ("layers_", "ranges", "says"),
    [
        (nn.Linear(2, 2), [range(1), range(1, 2)], "as a sequence of layers, .* got Linear"),
        (nn.Sequential(nn.Tanh()), [range(1)], "has 2 stages; got 1 range of layers"),
        ([nn.Tanh()] * 3, [range(1), range(1, 2)], r"each of the 3 layers once.*range\(0, 1\)"),
        ([nn.Tanh()] * 2, [range(2), range(2, 2)], "none is empty"),
        ([nn.Tanh()] * 2, [range(1, 2), range(1)], "in order"),
    ],
)
def test_a_model_that_cannot_be_split_is_told(layers_, ranges, says):
    with pytest.raises(ValueError, match=says):
        split(layers_, ranges, schedules.one_f_one_b(2, 1), 0)


def changing() -> None:
    stage = nn.Linear(4, 4)
    pipeline = Pipeline([stage], schedules.one_f_one_b(2, 2), F.mse_loss)
    for samples in (4, 6):
        pipeline.step(torch.ones(samples, 4), torch.ones(samples, 4))


def test_a_batch_of_another_size_is_refused_and_says_what_to_do():
    with pytest.raises(RankFailure, match=r"makes \[3, 4\] torch.float32 .* and made \[2, 4\]"):
        launch(changing, 2, timeout=60)


def dies(schedule: Schedule) -> None:
    class Dies(nn.Linear):
        def forward(self, x):
            if dist.get_rank() == 1:
                os._exit(3)
            return super().forward(x)

    Pipeline([Dies(4, 4)], schedule, F.mse_loss).step(torch.ones(4, 4), torch.ones(4, 4))


def test_a_rank_that_dies_in_mid_schedule_is_named():
    with pytest.raises(RankFailure, match="rank 1 of 3 left with exit code 3"):
        launch(dies, 3, schedules.one_f_one_b(3, 4), timeout=60)
