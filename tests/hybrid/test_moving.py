"""Stages that move: training goes on as in one process, and follows the ranks' speeds."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse import emulation, launch
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.hybrid.moving import MovingStages
from dtcourse.parameters.whole import full_gradients, full_state_dict
from dtcourse.pipeline_parallel import interleaved_1f1b, one_f_one_b, zb_h1
from dtcourse.verify import compare

WIDTH, SAMPLES, LAYERS = 6, 12, 9
OPTIMIZERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, 0.01),
}


class Counting(nn.Module):
    """A layer with a buffer, a frozen parameter, a state of its own, and a cost that emulation.sleep takes."""

    def __init__(self, cost=1.0):
        super().__init__()
        self.cost, self.calls = cost, 0
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.factor = nn.Parameter(torch.tensor(0.9), requires_grad=False)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        self.calls += 1
        self.mean = self.mean * 0.9 + x.detach().mean(0)
        if emulation.clock.installed() is not None:
            emulation.sleep(self.cost * SECONDS_OF_RANK[dist.get_rank()])
        return x + self.factor * torch.tanh(self.linear(x))

    def get_extra_state(self):
        return self.calls

    def set_extra_state(self, state):
        self.calls = state


SECONDS_OF_RANK = {}  # of a layer of cost 1, in the process of a rank


def build(costs=(1.0,) * LAYERS):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(*(Counting(cost) for cost in costs)).double()


def batch(step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(SAMPLES, WIDTH, dtype=torch.float64, generator=generator)
    return x, torch.randint(WIDTH, (SAMPLES,), generator=generator)


def cuts(*sizes):
    ends = list(itertools.accumulate(sizes))
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


# --- equal to one process -------------------------------------------------------------------------------------------


def by_hand(schedule, all_cuts, make):
    """Moved after each step, with gradients of two steps added up in between."""
    moving = MovingStages(list(build()), schedule, F.cross_entropy, ranges=all_cuts[0])
    optimizer = make([p for p in moving.module.parameters() if p.requires_grad])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    held = []
    for step, ranges in enumerate([*all_cuts[1:], all_cuts[0]]):
        moving.step(*batch(step))
        if step % 2:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        moving.move(ranges, optimizer)
        held.append(sum(p.numel() for p in moving.layers[4].parameters() if not p.is_meta))
    return full_state_dict(moving.module), full_gradients(moving.module), held


def one_process(steps, make, micro_batches):
    model = build()
    optimizer = make([p for p in model.parameters() if p.requires_grad])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for step in range(steps):
        x, y = batch(step)
        for part, target in zip(x.chunk(micro_batches), y.chunk(micro_batches), strict=True):
            (F.cross_entropy(model(part), target) / micro_batches).backward()
        if step % 2:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    return model.state_dict(), gradients


THREE = [
    cuts(3, 3, 3),
    cuts(1, 1, 7),
    cuts(7, 1, 1),
    cuts(1, 7, 1),
    cuts(2, 3, 4),
    cuts(4, 4, 1),
    cuts(3, 3, 3),
]
SIX = [
    cuts(2, 1, 1, 1, 2, 2),
    cuts(1, 1, 1, 1, 1, 4),
    cuts(4, 1, 1, 1, 1, 1),
    cuts(1, 2, 2, 2, 1, 1),
]
RUNS = {
    "1F1B": (one_f_one_b(3, 4), THREE),
    "two halves": (zb_h1(3, 4), THREE[:3]),
    "interleaved": (interleaved_1f1b(3, 3, 2), SIX),
}


def all_by_hand():
    return {
        (name, kind): by_hand(schedule, all_cuts, make)
        for name, (schedule, all_cuts) in RUNS.items()
        for kind, make in OPTIMIZERS.items()
        if name == "1F1B" or kind == "Adam"
    } | {"refusals": refusals()}


def refusals():
    said = {}

    def tried(name, act):
        try:
            act()
        except ValueError as error:
            said[name] = str(error)

    schedule, layers = one_f_one_b(3, 4), list(build())
    moving = MovingStages(list(build()), schedule, F.cross_entropy)
    two_groups = torch.optim.SGD(
        [{"params": [p], "lr": 0.1} for p in moving.module.parameters() if p.requires_grad]
    )
    tried("two groups", lambda: moving.move(THREE[1], two_groups))
    other = torch.optim.SGD(layers[0].parameters(), 0.1)
    tried("another optimizer", lambda: moving.move(THREE[1], other))
    right = torch.optim.SGD([p for p in moving.module.parameters() if p.requires_grad], 0.1)
    tried("an empty stage", lambda: moving.move(cuts(0, 4, 5), right))
    tried("costs", lambda: MovingStages(layers, schedule, F.cross_entropy, [1.0, 0.0]))
    layers[8].linear.weight = layers[0].linear.weight
    tried("tied", lambda: MovingStages(layers, schedule, F.cross_entropy))
    layers = list(build())
    layers[2].linear.again = layers[2].linear.weight
    tried("twice in a layer", lambda: MovingStages(layers, schedule, F.cross_entropy))
    layers = list(build())
    for i in (1, 5):
        layers[i].act = nn.ReLU()  # holds nothing: it may be shared
        layers[i].seen = layers[1].act
    MovingStages(layers, schedule, F.cross_entropy)
    shared = torch.zeros(3)
    for i in (1, 5):
        layers[i].register_buffer("shared", shared)
    tried("a shared buffer", lambda: MovingStages(layers, schedule, F.cross_entropy))
    moving.step(*batch(0))  # still as it was
    return said


@pytest.fixture(scope="module")
def moved():
    return launch(all_by_hand, 3)


def test_training_goes_on_as_in_one_process_wherever_layers_go(moved):
    for found in moved:
        for (name, kind), (state, gradients, _) in (
            (key, value) for key, value in found.items() if key != "refusals"
        ):
            schedule, all_cuts = RUNS[name]
            right, right_gradients = one_process(
                len(all_cuts), OPTIMIZERS[kind], schedule.micro_batches
            )
            calls = {n: v for n, v in state.items() if n.endswith("_extra_state")}
            assert calls == {n: right[n] for n in calls} and len(calls) == LAYERS
            tensors = {n: t for n, t in right.items() if isinstance(t, torch.Tensor)}
            compare({n: state[n] for n in tensors}, tensors, 1e-12, "value")
            mine = {n: g for n, g in gradients.items() if n in right_gradients}
            compare(mine, right_gradients, 1e-12, "gradient")


def test_a_layer_is_in_one_rank_s_memory_alone(moved):
    each = WIDTH * WIDTH + WIDTH + 1
    for key in moved[0]:
        if key != "refusals":
            by_step = zip(*(found[key][2] for found in moved), strict=True)
            assert all(sorted(held) == [0, 0, each] for held in by_step)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("two groups", "groups of parameters, and a layer that comes would not know its own"),
        ("another optimizer", "is not of this rank's trained parameters"),
        ("an empty stage", "none is empty"),
        ("costs", "9 layers need as many costs above 0"),
        ("twice in a layer", "layer 2 has one tensor in two places"),
        ("a shared buffer", "layers 1 and 5 have a buffer in common"),
        ("tied", "0.linear.weight and 8.linear.weight are one parameter"),
    ],
)
def test_what_cannot_move_is_refused_on_all_ranks_before_anything_has(moved, what, words):
    for found in moved:
        assert words in found["refusals"][what]


# --- follows measured speed ------------------------------------------------------------------------------------------

COSTS = [1.0, 2.0] * 10


def following(change, steps):
    """By step: the slowest rank's seconds of a micro-batch, and of the step. One rank is three times slower; from
    `change` on it is another one.
    """
    moving = MovingStages(list(build(COSTS)), one_f_one_b(3, 6), F.cross_entropy, COSTS)
    trained = [p for p in moving.module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, 0.1)
    found = []
    for step in range(steps):
        slow = 0 if step < change else 2
        SECONDS_OF_RANK.update({rank: 3e-3 if rank == slow else 1e-3 for rank in range(3)})
        optimizer.zero_grad()
        began = emulation.now()
        moving.step(*batch(step))
        dist.barrier()
        speeds = [1 / SECONDS_OF_RANK[rank] for rank in range(3)]
        found.append((moving.slowest(moving.ranges, speeds), emulation.now() - began))
        optimizer.step()
        moving.after(optimizer)
    return found, moving.moved


def test_within_a_tenth_of_the_ideal_and_again_ten_steps_after_a_change():
    """A stage is whole layers: 30 of cost at speeds 1, 1 and 1/3."""
    ideal = sum(COSTS) / (2 + 1 / 3) * 1e-3
    run = launch(following, 3, 12, 24, network=EmulatedNetwork(latency=1e-6), clock="virtual")
    seconds, moved = run[0]
    assert seconds[0][0] > 2 * ideal, "equal stages wait for the slow rank"
    assert max(stage for stage, _ in seconds[6:12]) < 1.1 * ideal
    assert seconds[12][0] > 2 * ideal and max(stage for stage, _ in seconds[22:]) < 1.1 * ideal
    assert seconds[11][1] < 0.6 * seconds[0][1] and seconds[23][1] < 0.6 * seconds[12][1]
    assert len(moved) == 2 and all(found[1] == moved for found in run)


def on_devices():
    """The same from what is really computed: rank 1's device is three times slower."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(64, 64) for _ in range(14)]
    moving = MovingStages(layers, one_f_one_b(3, 6), F.cross_entropy)
    optimizer = torch.optim.SGD(moving.module.parameters(), 0.1)
    for step in range(6):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(96, 64, generator=generator)
        moving.step(x, torch.randint(64, (96,), generator=generator))
        optimizer.step()
        optimizer.zero_grad()
        moving.after(optimizer)
    return [len(one) for one in moving.ranges]


def test_speeds_are_measured_on_the_devices():
    fast = EmulatedDevice(flops=1e9)
    run = launch(on_devices, 3, devices=[fast, fast.slower(3), fast])
    assert list(run) == [[6, 2, 6]] * 3
