"""Frozen stages, as in fine-tuning; and what a forward leaves behind that is run twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse.emulation import EmulatedDevice
from dtcourse.launch import launch
from dtcourse.pipeline_parallel import schedules
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.engine import Pipeline, split
from dtcourse.pipeline_parallel.layer_costs import layer_costs
from dtcourse.pipeline_parallel.pipedream import PipeDream
from dtcourse.profiling.operators import count
from tests.pipeline_parallel.samples import MAKE

WIDTH, VOCAB = 6, 9


# Which layers are frozen, a stage each: a frozen encoder before what is trained; and frozen stages that pass a gradient
# on to trained ones before them, in the middle and at the end.
FROZEN: dict[str, Callable[[int], Iterable[int]]] = {
    "first half": lambda layers: range((layers + 1) // 2),
    "every second from the end": lambda layers: range(layers - 1, 0, -2),
}


def fine_tuned(blocks: int, which: str = "first half") -> list[nn.Module]:
    """An embedding, blocks and an output layer, of which some are frozen."""
    torch.manual_seed(4)
    embedding = nn.Embedding(VOCAB, WIDTH)
    made = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(blocks - 1)]
    layers = [embedding, *made, nn.Linear(WIDTH, 3)]
    for frozen in FROZEN[which](len(layers)):
        layers[frozen].requires_grad_(False)
    return [one.double() for one in layers]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(VOCAB, (16,), generator=torch.Generator().manual_seed(1))
    return tokens, tokens % 3


Gradients = list[list[torch.Tensor | None]]


def tuned(made: dict[str, Schedule], recompute: bool) -> dict[tuple[str, str], Gradients]:
    """By schedule and by what is frozen, each layer's gradients of a second step on this rank."""
    found = {}
    for (name, schedule), which in product(made.items(), FROZEN):
        layers = fine_tuned(schedule.num_stages - 1, which)
        ranges = [range(i, i + 1) for i in range(schedule.num_stages)]
        stages = split(layers, ranges, schedule, dist.get_rank())
        pipeline = Pipeline(stages, schedule, F.cross_entropy, recompute=recompute)
        for _ in range(2):
            for stage in stages:
                stage.zero_grad()
            pipeline.step(*batch())
        assert not pipeline.mail.going
        found[name, which] = [[p.grad for p in layer.parameters()] for layer in layers]
    return found


@pytest.mark.parametrize("recompute", [False, True])
def test_stages_without_trained_weights_run_wherever_they_stand(recompute):
    p, made = 3, {name: make(3, 6) for name, make in MAKE.items()}
    run = launch(tuned, p, made, recompute, timeout=120)
    for (name, schedule), which in product(made.items(), FROZEN):
        print(name, which)
        model = nn.Sequential(*fine_tuned(schedule.num_stages - 1, which))
        F.cross_entropy(model(batch()[0]), batch()[1]).backward()
        for stage, layer in enumerate(model):
            found = run[schedule.rank_of[stage]][name, which][stage]
            for grad, parameter in zip(found, layer.parameters(), strict=True):
                assert (grad is None) == (parameter.grad is None)
                if grad is not None:
                    torch.testing.assert_close(grad, parameter.grad, rtol=1e-12, atol=1e-14)


def sent(frozen: bool) -> None:
    schedule = schedules.one_f_one_b(3, 4)
    layers = [
        nn.Linear(WIDTH, WIDTH).double().requires_grad_(i == 2 or not frozen) for i in range(3)
    ]
    pipeline = Pipeline([layers[dist.get_rank()]], schedule, F.mse_loss)
    x = torch.ones(8, WIDTH).double()
    pipeline.step(x, x)


def test_no_gradient_is_sent_that_nobody_needs():
    whole, frozen = (launch(sent, 3, one, record=True).traffic for one in (False, True))
    border = 8 * WIDTH * 8
    assert [whole.bytes_sent(rank=r) - frozen.bytes_sent(rank=r) for r in range(3)] == [
        0,
        border,
        border,
    ]


def pipedream_of_frozen() -> list[list[float] | None]:
    schedule = schedules.pipedream(3, 8)
    layers = fine_tuned(2)
    stages = split(layers, [range(i, i + 1) for i in range(3)], schedule, dist.get_rank())
    engine = PipeDream(stages, schedule, F.cross_entropy, lambda w: torch.optim.SGD(w, lr=0.5))
    return [engine.run(*batch()) for _ in range(3)]


def test_pipedream_trains_what_is_not_frozen():
    losses = launch(pipedream_of_frozen, 3, timeout=60)[2]
    assert sum(losses[2]) < sum(losses[0])


def all_frozen() -> None:
    pipeline = Pipeline(
        [nn.Linear(4, 4).requires_grad_(False)], schedules.one_f_one_b(2, 2), F.mse_loss
    )
    pipeline.step(torch.ones(4, 4), torch.ones(4, 4))


def test_a_model_that_is_frozen_altogether_is_refused_by_the_last_stage():
    """The first one waits for no gradient, and has none."""
    with pytest.raises(
        Exception,
        match="The loss depends on nothing to train: its 2 stages have no trained weights",
    ):
        launch(all_frozen, 2, timeout=60)


def test_the_cost_of_a_frozen_layer_has_the_backward_that_it_will_have():
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    for one in (layers[0], layers[1], layers[3]):
        one.requires_grad_(False)
    costs = layer_costs(layers, torch.ones(2, WIDTH), on=EmulatedDevice(flops=1))
    backward = [(one.backward_input > 0, one.backward_weight > 0) for one in costs]
    assert backward == [(False, False), (False, False), (False, True), (True, False)]


class Counts(nn.Module):
    """Its output depends on a buffer that it changes, which has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()).double())
        self.register_buffer("again", self.calls)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * self.again.clone()


def with_buffers(recompute: bool) -> list[torch.Tensor]:
    """After two steps, this rank's state and gradients."""
    torch.manual_seed(0)
    stage = nn.Sequential(Counts(), nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)).double()
    schedule = MAKE["ZB-H1"](dist.get_world_size(), 4)
    pipeline = Pipeline([stage], schedule, F.mse_loss, recompute=recompute)
    x = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(3)).double()
    buffers = {name: id(one) for name, one in stage.named_buffers()}
    for _ in range(2):
        pipeline.step(x, x)
    assert buffers == {name: id(one) for name, one in stage.named_buffers()}
    return [*stage.state_dict().values(), *(p.grad for p in stage.parameters())]


def stepped(recompute: bool) -> tuple[int, int]:
    """A step of a pipeline: the FLOPs that its model needs, and those that are executed twice."""
    stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    pipeline = Pipeline([stage], schedules.gpipe(2, 4), lambda y, _: y.sum(), recompute=recompute)
    x = torch.ones(8, WIDTH)
    counted = count(lambda: pipeline.step(x, x))
    return counted.model_flops, counted.recomputed


def test_recomputed_forwards_are_counted_apart():
    """A product in forward, one in backward for the weights and, on the last stage, one for the input.

    With recompute the forward's is executed once more.
    """
    forward = 2 * 8 * WIDTH * WIDTH
    for recompute in (False, True):
        run = launch(stepped, 2, recompute, device="cpu", devices=EmulatedDevice(flops=1e9))
        for rank, account in enumerate(run.accounts):
            assert run[rank] == ((2 + rank) * forward, recompute * forward)
            assert account.flops == (2 + rank + recompute) * forward
            assert account.recomputed == pytest.approx(recompute * forward / 1e9)


def test_recomputed_forwards_count_once():
    once, twice = (launch(with_buffers, 2, recompute) for recompute in (False, True))
    for rank in range(2):
        assert once[rank][0] == 8
        assert all(map(torch.equal, once[rank], twice[rank]))
