"""A gradient of zero is not no gradient: a parameter that any rank used is updated on all ranks,
one that none used on none."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import launch
from dtcourse.profiling.memory import local
from dtcourse.sharding import MixedPrecisionPolicy, full_gradients, full_state_dict, fully_shard
from dtcourse.verify import compare
from tests.turns import taking_turns

# Each value of each parameter is tried every time, their other combinations by turns (tests/turns.py).
pytestmark = pytest.mark.each_once("dtcourse/sharding/")


class Branches(nn.Module):
    """A rank uses one of three; nobody uses the fourth."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(7))
        self.c, self.nobody = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(3))

    def forward(self, x, which):
        return (getattr(self, which) * x).sum()


def inputs(rank):
    """Rank 0 gives `a` a gradient; rank 1 gives `b` one of zeros (its batch is masked out);
    rank 2 gives `c` one of -0."""
    return [(1.0, "a"), (0.0, "b"), (-0.0, "c"), (2.0, "a")][rank]


def train(model, losses):
    """Weight decay and momentum act on a gradient of zero, and not where there is none."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        for x, which in losses:
            (model(torch.tensor(x), which) / len(losses)).backward()
        optimizer.step()


def on_ranks(shard, shape=None, policy=None):
    mesh = None if shape is None else init_device_mesh("cpu", shape, mesh_dim_names=("a", "b"))
    model = shard(Branches(), mesh=mesh, mp_policy=policy)
    x, which = inputs(dist.get_rank())
    size = dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.tensor(x), which).backward()
        optimizer.step()
    without = [n for n, g in full_gradients(model).items() if g is None]
    return full_state_dict(model), without, size


class Around(nn.Module):
    """Blocks, units all, and parameters of the root between and after them, which not every rank uses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Experts() for _ in range(4))
        self.scales = nn.ParameterList(torch.rand(3) for _ in range(4))

    def forward(self, x, used):
        for i, (block, scale) in enumerate(zip(self.blocks, self.scales, strict=True)):
            x = block(x, used)
            x = x * scale if i in used else x
        return x


class Experts(nn.Module):
    """A block of which not every rank uses all."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def forward(self, x, used):
        for i, expert in enumerate(self.experts):
            x = torch.tanh(expert(x)) if i in used else x
        return x


def used_by(rank, forward):
    """Rank 0 uses all of the root's parameters, the others two, in each forward other ones."""
    return range(4) if rank == 0 else [(rank + forward) % 2, 2 + forward % 2]


def train_around(model, ranks, forwards, quiet):
    """A backward through the sum of `forwards` forwards; before it, one whose gradients are not sent if `quiet`."""
    for backward in range(2 if quiet else 1):
        if len(ranks) == 1:
            model.set_requires_gradient_sync(not quiet or backward == 1)
        losses = [
            model(torch.full((2, 3), 1.0 + rank + forward), used_by(rank, forward + backward))
            .square()
            .sum()
            for forward in range(forwards)
            for rank in ranks
        ]
        sum(losses).backward()


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("forwards", [1, 2])
@pytest.mark.parametrize("units", ["root", "blocks"])
def test_ranks_that_use_other_parameters_around_inner_units(shard, units, forwards, quiet):
    """Each rank's gradients come at other moments, and all ranks must reduce in one order all the same."""

    def step():
        model = Around()
        for block in model.blocks if units == "blocks" else ():
            shard(block)
        shard(model)
        train_around(model, [dist.get_rank()], forwards, quiet)
        return full_gradients(model)

    plain = Around()
    train_around(plain, range(3), forwards, quiet)
    for gradients in launch(step, 3):
        compare(gradients, {n: p.grad / 3 for n, p in plain.named_parameters()})


def check(run, tolerance=1e-6):
    plain = Branches()
    train(plain, [inputs(rank) for rank in range(len(run))])
    for state, without, _ in run:
        compare(state, plain.state_dict(), tolerance=tolerance)
        assert without == [n for n, p in plain.named_parameters() if p.grad is None]


@pytest.mark.parametrize("ranks", [1, 3, *taking_turns(2, 4, about="dtcourse/sharding/")])
def test_as_in_one_process(shard, ranks):
    check(launch(on_ranks, ranks, shard))


@pytest.mark.parametrize("backend", ["naive", "ring", "tree", "halving_doubling"])
def test_over_every_way_to_sum(shard, backend):
    check(launch(on_ranks, 3, shard, backend=backend))


def test_with_hybrid_sharding_and_in_half_precision(shard):
    check(launch(on_ranks, 4, shard, (2, 2)))
    for dtype in (torch.bfloat16, torch.float16):
        run = launch(on_ranks, 3, shard, None, MixedPrecisionPolicy(dtype, dtype))
        check(run, tolerance=1e-2)  # a third, rounded; decay and momentum are far more


def test_a_gradient_that_is_too_small_for_its_dtype_came_all_the_same(shard):
    def step():
        model = shard(Branches(), mp_policy=MixedPrecisionPolicy(None, torch.float16))
        if dist.get_rank() == 0:
            model(torch.tensor(-1e-12), "c").backward()
        else:
            model(torch.tensor(1.0), "a").backward()
        parts = ((n, p.grad, local(p).numel()) for n, p in model.named_parameters())
        return {n: None if grad is None else local(grad) for n, grad, kept in parts if kept}

    parts = launch(step, 2)
    if shard is fully_shard:  # c has one row, on the first rank
        assert parts[0]["c"].tolist() == [0.0] and "c" not in parts[1]
    else:
        assert "c" not in parts[0] and parts[1]["c"].tolist() == [0.0], (
            "it is on the rank that did not use it"
        )
    assert parts[1]["nobody"] is None


def test_what_came_in_an_earlier_micro_batch_counts(shard):
    def step():
        model = shard(Branches())
        model.set_requires_gradient_sync(False)
        model(torch.tensor(0.0), "b").backward()
        model.set_requires_gradient_sync(True)
        model(torch.tensor(1.0), "a").backward()
        return full_gradients(model)

    for gradients in launch(step, 2):
        found = {n: None if g is None else g.tolist() for n, g in gradients.items()}
        assert found == {"a": [1.0, 1.0], "b": [0.0] * 7, "c": None, "nobody": None}
