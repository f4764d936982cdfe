"""Cuts by speed and memory: the best for one stage on each rank, near it for several, and undone where costs lie."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse import emulation, launch
from dtcourse.emulation import EmulatedDevice
from dtcourse.hybrid.moving import MovingStages
from dtcourse.hybrid.moving_cuts import Cuts
from dtcourse.pipeline_parallel import one_f_one_b
from dtcourse.pipeline_parallel.layer_costs import layer_costs


def all_cuts(layers, stages):
    for ends in itertools.combinations(range(1, layers), stages - 1):
        yield [range(a, b) for a, b in itertools.pairwise([0, *ends, layers])]


def sizes(ranges):
    return [len(one) for one in ranges]


LOOPED = [0, 1, 2, 0, 1, 2]  # the ranks of interleaved stages
SECONDS = [3.0, 1.0, 1.0]


def test_of_several_stages_on_a_rank_the_sum_counts():
    cuts = Cuts([1.0] * 12, LOOPED)
    best = min(max(cuts.busy(one, SECONDS)) for one in all_cuts(12, 6))
    found = cuts.best(SECONDS)
    assert max(cuts.busy(found, SECONDS)) <= 1.1 * best
    # From wherever it begins.
    worst = [range(7), *(range(i, i + 1) for i in range(7, 12))]
    assert max(cuts.busy(cuts.best(SECONDS, worst), SECONDS)) <= 1.1 * best


def test_memory_bounds_the_layers_of_a_rank_though_it_is_fast():
    cuts = Cuts([1.0] * 8, [0, 1], [10.0] * 8, [50.0, 80.0])
    assert sizes(cuts.best([1.0, 3.0])) == [5, 3]
    assert sizes(Cuts([1.0] * 8, [0, 1]).best([1.0, 3.0])) == [6, 2]
    looped = Cuts([1.0] * 8, [0, 1, 0, 1], [10.0] * 8, [50.0, 80.0])
    found = looped.best([1.0, 3.0])
    assert looped.fit(found) and max(looped.busy(found, [1.0, 3.0])) == 9.0


@pytest.mark.parametrize("rank_of", [[0, 1], [0, 1, 0, 1]])
def test_where_nothing_fits_it_is_said(rank_of):
    with pytest.raises(ValueError, match="fits into the"):
        Cuts([1.0] * 8, rank_of, [10.0] * 8, [30.0, 40.0]).best([1.0, 3.0])
    with pytest.raises(ValueError, match="as many layer_bytes and memories; got 8 and 1"):
        Cuts([1.0] * 8, rank_of, [10.0] * 8, [30.0])
    with pytest.raises(ValueError, match="go together"):
        Cuts([1.0] * 8, rank_of, [10.0] * 8)


# --- in a training -------------------------------------------------------------------------------------------------

WIDTH, DEVICE = 32, EmulatedDevice(flops=1e9)


class Slept(nn.Module):
    """A layer that takes so many milliseconds forward, and twice as many backward."""

    def __init__(self, milliseconds):
        super().__init__()
        self.seconds, self.weight = milliseconds * 1e-3, nn.Parameter(torch.ones(()))

    def forward(self, x):
        return Slow.apply(x * self.weight, self.seconds)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        emulation.sleep(seconds * (3 if SLOW and dist.get_rank() in SLOW else 1))
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        emulation.sleep(2 * ctx.seconds * (3 if SLOW and dist.get_rank() in SLOW else 1))
        return gradient, None


SLOW = []  # ranks that are three times slower, in the process of a rank


def linear(frozen):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(8)]
    for layer in layers[:frozen]:
        layer.requires_grad_(False)
    return layers


def batch():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, WIDTH, generator=generator)
    return x, torch.randint(WIDTH, (48,), generator=generator)


def followed(layers, steps, slow=(), **settings):
    """After which steps layers moved, the last cuts, and the seconds of the first and of the last step."""
    SLOW[:] = slow
    moving = MovingStages(layers, one_f_one_b(2, 4), F.cross_entropy, **settings)
    optimizer = torch.optim.SGD(moving.module.parameters(), 0.01)  # frozen ones are in it too
    took = []
    for _ in range(steps):
        dist.barrier()
        began = emulation.now()
        moving.step(*batch())
        dist.barrier()
        took.append(emulation.now() - began)
        optimizer.step()
        optimizer.zero_grad()
        moving.after(optimizer)
    return moving.moved, sizes(moving.ranges), took


def trainings(costs):
    return {
        "costs are wrong": followed([Slept(one) for one in [1, 1, 1, 10, 1, 1, 1]], 20),
        "half is frozen": followed(linear(4), 6, costs=costs),
        "memory": followed(
            [Slept(1) for _ in range(8)], 6, [1], layer_bytes=[10] * 8, memory=[50, 80]
        ),
        "free": followed([Slept(1) for _ in range(8)], 6, [1]),
        "mistakes": mistakes(),
    }


def mistakes():
    rank, said = dist.get_rank(), {}

    def tried(name, act):
        try:
            act()
            said[name] = "nothing"
        except ValueError as error:
            said[name] = str(error)

    def made(**settings):
        return MovingStages(linear(0), one_f_one_b(2, 4), F.cross_entropy, **settings)

    tried("other costs", lambda: made(costs=[1.0 + rank] * 8))
    tried("infinite", lambda: made(costs=[float("inf")] * 8))
    tried("nothing fits", lambda: made(layer_bytes=[10] * 8, memory=[30, 40]))
    moving = made()
    optimizer = torch.optim.SGD(moving.module.parameters(), 0.01)
    tried("other ranges", lambda: moving.move([range(3 + rank), range(3 + rank, 8)], optimizer))
    tried("LBFGS", lambda: moving.after(torch.optim.LBFGS(moving.module.parameters())))
    wrong = torch.optim.SGD([torch.ones(1)], 0.01) if rank else optimizer
    tried("one rank's optimizer", lambda: moving.after(wrong))
    tried("no time", lambda: moving.after(optimizer))  # no step has been made
    assert sizes(moving.ranges) == [4, 4]
    return said


@pytest.fixture(scope="module")
def run():
    x, y = batch()
    costs = layer_costs(linear(4), x, loss=lambda out: F.cross_entropy(out, y), on=DEVICE)
    return launch(trainings, 2, costs, devices=DEVICE)


def test_a_move_that_gained_nothing_is_undone_and_not_tried_again(run):
    """By costs that are all alike six layers are best for the first rank, and one of them is ten times the others."""
    for found in run:
        moved, cut, _ = found["costs are wrong"]
        assert moved == [3, 6] and cut == [3, 4]


def test_frozen_layers_do_not_make_a_rank_look_fast(run):
    """Their backward costs nothing, which costs say: measured by forwards alone a rank of them would look slow."""
    for found in run:
        assert found["half is frozen"][0] == []


def test_a_rank_three_times_slower_within_memory_and_without(run):
    """Eight layers, each 3 ms forward and backward on the fast rank."""
    for found in run:
        moved, cut, took = found["free"]
        assert moved == [3] and cut == [6, 2] and took[-1] < 0.7 * took[0]
        assert found["memory"][:2] == ([3], [5, 3])
    # The ideal is 8 layers / (1 + 1/3): six layers' 18 ms for a micro-batch; 1F1B of 4 on 2 ranks takes five of these.
    assert run[0]["free"][2][-1] < 1.1 * 5 * 0.018


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("other costs", "costs differs between the ranks"),
        ("infinite", "8 layers need as many costs above 0"),
        ("nothing fits", "No cut of 8 layers into 2 stages fits into their memory"),
        ("other ranges", "ranges differs between the ranks"),
        ("LBFGS", "LBFGS keeps one history of all parameters together"),
        ("one rank's optimizer", "is not of this rank's trained parameters"),
        ("no time", "the stages of rank 0 took no time in this step"),
    ],
)
def test_a_mistake_of_one_rank_is_said_on_all_and_nothing_moves(run, what, words):
    for found in run:
        assert words in found["mistakes"][what], found["mistakes"][what]
