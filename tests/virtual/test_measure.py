"""One rank that is traced does what a real one does: messages, FLOPs and peak memory are one count on both."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.sharding import fully_shard
from dtcourse.simulator.virtual_cluster import Measured, measure, run_rank


def make(sharded: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    if sharded:
        for part in (model[0], model[2], model):
            fully_shard(part)
    return model


def second_step(sharded: bool = False) -> Measured:
    """Data parallelism by hand, or full sharding; the first step makes the optimizer's states."""
    model = make(sharded)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(16, 8), torch.randint(4, (16,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if not sharded:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        optimizer.step()

    step()
    return measure(step, model, optimizer, (x, y))


def rows(found: Measured):
    return sorted(found.record.rows), sorted(found.record.calls.items())


@pytest.mark.parametrize("rank", [0, 3])
def test_a_traced_rank_is_a_real_one(rank):
    real = launch(second_step, 4, record=True)[rank]
    traced, calls = run_rank(second_step, rank=rank, ranks=4)
    assert rows(traced) == rows(real)
    assert (traced.flops, traced.recomputed) == (real.flops, real.recomputed) and real.flops > 0
    assert traced.peak == real.peak
    assert [call.operation for call in calls] == ["all_reduce"] * 8


def test_bytes_of_a_thousand_are_the_formulas():
    """An all-reduce of n bytes sends 2 n (p - 1) / p; a model and a step are as large on any number of ranks."""
    traced, _ = run_rank(second_step, rank=700, ranks=1024)
    size = 4 * sum(p.numel() for p in make().parameters())
    assert traced.traffic.bytes_sent() == pytest.approx(2 * size * 1023 / 1024, rel=0.01)
    assert traced.flops == run_rank(second_step, rank=0, ranks=4)[0].flops


def test_a_sharded_rank_has_bytes_and_flops_and_no_peak():
    real = launch(second_step, 2, True, record=True)[1]
    traced, _ = run_rank(second_step, True, rank=1, ranks=2)
    assert rows(traced) == rows(real) and traced.flops == real.flops
    assert real.peak_bytes > 0
    for ask in (lambda: traced.peak_bytes, lambda: traced.by_category):
        with pytest.raises(ValueError, match="fully sharded parameters is not known"):
            ask()


def test_a_way_that_depends_on_values_is_refused_and_nothing_is_left():
    def by_value():
        return float(torch.randn(3).sum())

    state = torch.random.get_rng_state()
    with pytest.raises(ValueError, match="rank 1 of 2 cannot be traced"):
        run_rank(by_value, rank=1, ranks=2)
    assert not dist.is_initialized() and gc.isenabled()
    assert torch.equal(torch.random.get_rng_state(), state)
    with pytest.raises(KeyError):  # another's error stays what it is
        run_rank({}.__getitem__, "a", rank=0, ranks=2)


def test_a_step_that_sends_once_more_is_seen():
    once, _ = run_rank(second_step, rank=0, ranks=4)

    def twice(*args, send=dist.all_reduce, **kwargs):
        send(*args, **kwargs)
        return send(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", twice)
        more, _ = run_rank(second_step, rank=0, ranks=4)
    assert rows(more) != rows(once)
