"""Models as lists of layers, what the layers cost, and pipelines made of them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dtcourse import emulation
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.launch import launch
from dtcourse.models import MLP, ConvNet, ResNet, Transformer, TransformerConfig
from dtcourse.pipeline_parallel import schedules, zero_bubble
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.balance import balance
from dtcourse.pipeline_parallel.engine import Pipeline, split
from dtcourse.pipeline_parallel.layer_costs import layer_costs, times_of
from dtcourse.pipeline_parallel.layers import layers_of, shared_parameters
from dtcourse.pipeline_parallel.recorded import steps
from dtcourse.pipeline_parallel.simulate import simulate

SMALL = TransformerConfig(vocab=11, d_model=8, n_layers=3, n_heads=2, max_length=6)
TOKENS = torch.arange(24).reshape(4, 6) % 11
IMAGES = torch.linspace(-1, 1, 4 * 3 * 8 * 8).reshape(4, 3, 8, 8)

MODELS = {
    "Transformer": (lambda: Transformer(SMALL), TOKENS, 5),
    "Transformer with rotary positions": (
        lambda: Transformer(
            TransformerConfig(11, 8, 3, 2, tied=False, positions="rotary", norm="rms", mlp="swiglu")
        ),
        TOKENS,
        5,
    ),
    "MLP": (lambda: MLP((192, 8, 8, 3)), IMAGES, 6),
    # Two convolutions with their norms, and the classifier; relu, pooling and flatten go with what is before them.
    "ConvNet": (lambda: ConvNet((4, 6), in_channels=3), IMAGES, 5),
    # The stem's convolution and norm, eight blocks, the classifier: no border within a block.
    "ResNet": (lambda: ResNet(18, width=4, classes=5, small_images=True), IMAGES, 11),
}


@pytest.mark.parametrize("name", MODELS)
def test_one_after_the_other_the_layers_are_the_model(name):
    make, x, number = MODELS[name]
    model = make()
    layers = layers_of(model)
    assert len(layers) == number
    assert {id(p) for one in layers for p in one.parameters()} == set(map(id, model.parameters()))
    assert {id(b) for one in layers for b in one.buffers()} == set(map(id, model.buffers()))
    for training in (False, True):
        model.train(training)
        for one in layers:
            one.train(training)
        torch.testing.assert_close(nn.Sequential(*layers)(x), model(x), rtol=0, atol=0)


class TwoInputs(nn.Module):
    def forward(self, x, y):
        return x + y


class Decides(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class FunctionalDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.b(F.dropout(self.a(x), training=self.training))


class AllTheWay(FunctionalDropout):
    def forward(self, x):
        return self.b(self.a(x)) + x


class Pair(FunctionalDropout):
    def forward(self, x):
        y = self.a(x)
        return self.b(y), y


class Early(FunctionalDropout):
    def forward(self, x):
        y = self.a(x)
        self.b(y)
        return y


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Early(), "it returns an earlier tensor, not the one tensor that it makes last"),
        (TwoInputs(), r"TwoInputs cannot be split: it takes several inputs \(x, y\)\. Write it as"),
        (Decides(), "Decides cannot be split: its forward cannot be followed .*control flow"),
        (FunctionalDropout(), "dropout would stay in training .*nn.Dropout"),
        (AllTheWay(), "nowhere between its parameters is there one tensor alone"),
        (Pair(), "it returns a tuple, not the one tensor"),
    ],
)
def test_what_cannot_be_split_is_said(model, says):
    with pytest.raises(ValueError, match=says):
        layers_of(model)


def gradients(layers: list[nn.Module]) -> dict[str, torch.Tensor]:
    return {
        f"{i} {name}": parameter.grad
        for i, layer in enumerate(layers)
        for name, parameter in layer.named_parameters()
        if parameter.grad is not None
    }


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def tied_pipelines(made: list[Schedule]) -> list[tuple[dict[str, torch.Tensor], int]]:
    """By schedule, this rank's gradients after one step of a Transformer, and how many parameters it shares."""
    found = []
    for schedule in made:
        layers = layers_of(Transformer(SMALL).double())
        ranges = balance([1.0] * len(layers), schedule.num_stages)
        shared = shared_parameters(layers, ranges, schedule)
        stages = split(layers, ranges, schedule, dist.get_rank())
        Pipeline(stages, schedule, loss, shared=shared).step(TOKENS, TOKENS.flip(1))
        found.append((gradients(layers), len(shared)))
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_tied_transformer_has_one_process_gradients(ranks):
    """Also where both ends are on one rank (a V), and share the parameter itself."""
    alone = layers_of(Transformer(SMALL).double())
    loss(nn.Sequential(*alone)(TOKENS), TOKENS.flip(1)).backward()
    expected = gradients(alone)
    made = [schedules.one_f_one_b(ranks, 4), zero_bubble.zb_h1(ranks, 3)]
    if 2 * ranks <= len(alone):
        made.append(zero_bubble.zb_v(ranks, 4))
    run = launch(tied_pipelines, ranks, made)
    for number, schedule in enumerate(made):
        held = [run[rank][number][0] for rank in range(ranks)]
        assert set().union(*held) == set(expected)
        for one in held:
            for name, gradient in one.items():
                torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-14)
        ends_apart = schedule.rank_of[0] != schedule.rank_of[-1]
        counts = [run[rank][number][1] for rank in range(ranks)]
        assert counts == ([1, *[0] * (ranks - 2), 1] if ends_apart else [0] * ranks)


def test_counted_costs_are_torchs_flops():
    layers = layers_of(Transformer(SMALL))
    found = layer_costs(layers, TOKENS, loss=lambda y: y.sum(), on=EmulatedDevice(flops=1))
    with FlopCounterMode(display=False) as counter:
        logits = nn.Sequential(*layers)(TOKENS)
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        logits.sum().backward()
    assert sum(one.forward for one in found) == forward
    backward = sum(one.backward_input + one.backward_weight for one in found)
    assert backward == counter.get_total_flops()
    assert found[1] == found[2] == found[3]
    assert found[1].total > found[-1].total > found[0].total == 0
    # The head: 24 places, 8 wide, 11 tokens; each half of the backward costs as much as the forward.
    assert found[-1] == (2 * 24 * 8 * 11,) * 3


def test_nobody_wants_the_gradient_of_the_input():
    first, second = layer_costs(
        [nn.Linear(5, 5), nn.Linear(5, 5)], torch.ones(3, 5), on=EmulatedDevice(flops=0.5)
    )
    assert first == (2 * 150, 0, 2 * 150)
    assert second == (2 * 150, 2 * 150, 2 * 150)


def test_the_bytes_of_a_layer_without_products_cost_time_too():
    (one,) = layer_costs([nn.LayerNorm(64)], torch.ones(8, 64), on=EmulatedDevice(1e9, 1e6))
    assert one.forward >= 2 * 8 * 64 * 4 / 1e6


def test_measuring_leaves_the_model_as_it_is():
    model = ConvNet((4, 6), in_channels=3)
    layers = [*layers_of(model), nn.Dropout(0.5)]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    found = layer_costs(layers, IMAGES, repeats=2)
    assert all(one.forward > 0 for one in found)
    assert all(one.backward_input > 0 for one in found[1:])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)


WIDTH, FLOPS, LINK = 32, 1e9, EmulatedNetwork(latency=1e-6, bandwidth=1e10)
SPEEDS = (1.0, 2.0, 4.0, 1.0)


def stack_of_layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(16)]


def train(made: Schedule, ranges: list[range]) -> list[tuple[float, float, float]]:
    """Two steps on devices of different speeds; and what this rank measures of one layer."""
    layers = stack_of_layers()
    pipeline = Pipeline(
        split(layers, ranges, made, dist.get_rank()), made, lambda y, target: y.sum()
    )
    x = torch.ones(8 * made.micro_batches, WIDTH)
    for _ in range(2):
        pipeline.step(x, x)
        dist.barrier()
    assert emulation.now() > 0
    return layer_costs(layers[:2], x[:8])


def test_unequal_devices_are_balanced_by_speed_as_the_simulator_says():
    schedule = schedules.one_f_one_b(4, 8)
    devices = [EmulatedDevice(flops=FLOPS * speed) for speed in SPEEDS]
    costs = layer_costs(stack_of_layers(), torch.ones(8, WIDTH), on=EmulatedDevice(flops=FLOPS))
    totals = [one.total for one in costs]
    transfer = 1e-6 + 8 * WIDTH * 4 / 1e10
    makespans = []
    for ranges in (balance(totals, 4), balance(totals, 4, SPEEDS)):
        run = launch(train, 4, schedule, ranges, devices=devices, network=LINK, record=True)
        found = simulate(schedule, times_of(costs, ranges, SPEEDS, transfer=transfer))
        measured = steps(run.timeline)[-1]  # in the first one headers travel, too
        assert measured.span == pytest.approx(found.makespan, rel=1e-9)
        makespans.append(found.makespan)
        for rank, speed in enumerate(SPEEDS):
            for counted, one in zip(costs, run[rank], strict=False):
                assert one == pytest.approx([part / speed for part in counted], rel=1e-9)
    assert [len(one) for one in ranges] == [2, 4, 8, 2]
    assert makespans[1] < 0.6 * makespans[0]
