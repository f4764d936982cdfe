"""Adaptive periods, buffers and schedules; workers that would never meet, changed models, rates out of range."""

from __future__ import annotations

import copy
import math
import re
import warnings
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.asynchronous import AdaComm, DiLoCo, ElasticAveraging, GossipSGD, LocalSGD, mixing


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr)


def one_step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).square().mean().backward()
    optimizer.step()


# --- adaptive periods --------------------------------------------------------------------------------------------


def adapted(losses, rates, interval):
    """Periods in each step where this rank's losses are its number more than `losses`; saved and loaded half-way."""
    model = nn.Linear(3, 2)
    optimizer = LocalSGD(model, sgd(model, rates[0]), 8)
    adacomm = AdaComm(optimizer, interval)
    periods, meetings = [], []
    for step, (loss, rate) in enumerate(zip(losses, rates, strict=True)):
        optimizer.param_groups[0]["lr"] = rate
        periods.append(optimizer.period)
        one_step(model, optimizer)
        if optimizer.steps_since_meeting == 0:
            meetings.append(step + 1)
        with warnings.catch_warnings():  # the loss as backward left it
            warnings.simplefilter("error")
            adacomm.step(torch.tensor(loss + dist.get_rank(), requires_grad=True))
        if step == len(losses) // 2:
            kept, kept_too = copy.deepcopy((optimizer.state_dict(), adacomm.state_dict()))
            optimizer = LocalSGD(model, sgd(model, rates[0]), 8, init_sync=False)
            adacomm = AdaComm(optimizer, interval + 0)
            optimizer.load_state_dict(kept)
            adacomm.load_state_dict(kept_too)
    return periods, meetings, adacomm.periods


def adaptive():
    quarter = [4.0] * 8 + [0.625] * 24  # with the ranks' numbers, in the mean 4.5 and then 1.125
    slow = [0.1] * 20 + [0.1 / 16] * 12
    return (
        adapted(quarter, [0.1] * 32, 16),
        adapted([4.0] * 32, slow, 8),
        adapted([4.0] * 40, [0.1] * 40, 8),
    )


def test_the_period_follows_the_loss_and_is_the_same_on_all_ranks():
    run = launch(adaptive, 2)
    assert run[0] == run[1]
    (_, meetings, periods), (_, _, with_rate), (stuck, _, _) = run[0]
    # sqrt(1.125 / 4.5) * 8 = 4; then no shorter, so half of it.
    assert periods == [8, 4, 2]
    assert meetings == [8, 16, 20, 24, 28, 32]
    # No lower loss: 4, then 2; a rate 16 times lower: 4 * 8; then half of that.
    assert with_rate[:4] == [8, 4, 2, 32]
    assert stuck == [8] * 8 + [4] * 8 + [2] * 8 + [1] * 16


# --- buffers, schedules ------------------------------------------------------------------------------------------


def with_buffers():
    found, rank = {}, dist.get_rank()
    for method, average_buffers in product((LocalSGD, DiLoCo), (True, False)):
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        model.register_buffer("scratch", torch.tensor(float(rank)), persistent=False)
        optimizer = method(model, sgd(model), 2, average_buffers=average_buffers)
        model.scratch.fill_(rank)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for step in range(2):
            optimizer.zero_grad()
            x = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * rank + step))
            model(x).square().sum().backward()
            if step:
                alone = copy.deepcopy(model[1].running_mean)
            optimizer.step()
            schedule.step()
        found[method, average_buffers] = (
            alone,
            model[1].running_mean.clone(),
            model[1].num_batches_tracked.item(),
            model.scratch.item(),
            model[0].weight.detach().clone(),
        )
        assert optimizer.optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
    return found


def test_running_statistics_are_averaged_or_each_ranks_own():
    run = launch(with_buffers, 3)
    for method in (LocalSGD, DiLoCo):
        mean = torch.stack([found[method, True][0] for found in run]).mean(0)
        for rank, found in enumerate(run):
            alone, after, batches, scratch, _ = found[method, True]
            assert not torch.allclose(alone, mean)
            torch.testing.assert_close(after, mean)
            assert (batches, scratch) == (2, rank)
            alone, after, *_, weight = found[method, False]
            assert torch.equal(alone, after)
            assert torch.equal(weight, run[0][method, False][-1]), "parameters are"


def closures():
    """An optimizer that wants a closure: the gradient is that of where the parameters are before the mean."""
    for wrap in (
        lambda m: LocalSGD(m, sgd(m), 2, synchronous_steps=2),
        lambda m: ElasticAveraging(m, sgd(m), 1),
        lambda m: GossipSGD(m, sgd(m), mixing.ring(2)),
        lambda m: DiLoCo(m, sgd(m), 2),
    ):
        ends = []
        for use_closure in (False, True):
            torch.manual_seed(0)
            model = nn.Linear(3, 2)
            optimizer = wrap(model)

            def closure(model=model, optimizer=optimizer):
                optimizer.zero_grad()
                loss = model(torch.ones(2, 3) * (1 + dist.get_rank())).square().mean()
                loss.backward()
                return loss

            for _ in range(5):
                if use_closure:
                    assert optimizer.step(closure).item() > 0
                else:
                    closure()
                    optimizer.step()
            ends.append(model.weight.detach().clone())
        assert torch.equal(*ends)


def test_closures():
    launch(closures, 2)


# --- the end -----------------------------------------------------------------------------------------------------


def met_again():
    """Parameters after the last step, which has met or not, and after each of three more meetings."""
    found, rank = {}, dist.get_rank()
    for steps in (4, 5):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = DiLoCo(model, sgd(model), 2)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(2, 3) * (1 + rank)).square().mean().backward()
            optimizer.step()
        ends = [model.weight.detach().clone()]
        for _ in range(3):
            optimizer.meet()
            ends.append(model.weight.detach().clone())
        found[steps] = ends
    one_step(model, optimizer) if rank else None
    return found, refused(optimizer.meet)


def test_meeting_after_a_step_that_has_met_moves_nothing():
    run = launch(met_again, 2)
    for found, message in run:
        last, *again = found[4]
        assert all(torch.equal(last, x) for x in again)
        last, met, *again = found[5]
        assert not torch.equal(last, met) and all(torch.equal(met, x) for x in again)
        assert torch.equal(met, run[0][0][5][1])
        assert "0 on rank 0; 1 on rank 1" in message, "the ranks agree before one of them leaves"


# --- mistakes ----------------------------------------------------------------------------------------------------


def refused(call):
    with pytest.raises(ValueError) as caught:
        call()
    return str(caught.value)


def mistakes():
    rank, model = dist.get_rank(), nn.Linear(3, 2)
    other, found = nn.Linear(3, 2), {}
    found["periods differ"] = refused(lambda: LocalSGD(model, sgd(model), 2 + (rank == 1)))
    found["methods differ"] = refused(lambda: (DiLoCo if rank else LocalSGD)(model, sgd(model), 2))
    found["betas differ"] = refused(
        lambda: ElasticAveraging(model, sgd(model), 2, 0.5 + 0.1 * rank)
    )
    found["graphs differ"] = refused(
        lambda: GossipSGD(
            model, sgd(model), mixing.ring(3) if rank else mixing.one_peer_exponential(3)
        )
    )
    found["models differ"] = refused(
        lambda: LocalSGD(*(lambda m: (m, sgd(m)))(nn.Linear(3 + rank, 2)), 2)
    )

    # One rank changes its period alone; another takes a step more.
    optimizer = LocalSGD(model, sgd(model), 2)
    optimizer.period = 3 if rank == 1 else 2
    found["period changed"] = refused(lambda: [one_step(model, optimizer) for _ in range(3)])
    optimizer = DiLoCo(model, sgd(model), 3)
    one_step(model, optimizer)
    if rank == 2:
        one_step(model, optimizer)
    found["met too early"] = refused(optimizer.meet)
    # A momentum that one rank has not.
    momentum = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 if rank else 0.0)
    optimizer = LocalSGD(model, momentum, 1, average_state=True)
    found["states differ"] = refused(lambda: one_step(model, optimizer))

    found["not the model's"] = refused(lambda: LocalSGD(model, sgd(other), 2))
    found["wrapped twice"] = refused(lambda: DiLoCo(model, LocalSGD(model, sgd(model), 2), 2))
    found["class"] = refused(lambda: LocalSGD(model, torch.optim.SGD, 2))
    frozen = nn.Linear(3, 2).requires_grad_(False)
    found["all frozen"] = refused(lambda: LocalSGD(frozen, sgd(frozen), 2))

    for name, change in CHANGES.items():
        changed = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
        changed[1].bias.requires_grad_(False)
        optimizer = LocalSGD(changed, sgd(changed), 1)
        change(changed, optimizer)
        found[name] = refused(optimizer.average)
    optimizer = LocalSGD(model, sgd(model), 2)
    found["added"] = refused(lambda: optimizer.add_param_group({"params": other.parameters()}))
    states = [
        w(other).state_dict()
        for w in (lambda m: DiLoCo(m, sgd(m)), lambda m: ElasticAveraging(m, sgd(m), 2))
    ]
    large = nn.Linear(7, 2)
    found["another start"] = refused(lambda: DiLoCo(large, sgd(large)).load_state_dict(states[0]))
    found["another center"] = refused(
        lambda: ElasticAveraging(other, sgd(other), 2, shard_center=True).load_state_dict(states[1])
    )
    optimizer = AdaComm(LocalSGD(model, sgd(model), 2), 5)
    found["negative loss"] = refused(lambda: optimizer.step(-1.0))
    return found


CHANGES = {
    "replaced": lambda m, o: setattr(m[0], "weight", nn.Parameter(torch.zeros(2, 3))),
    "unfrozen": lambda m, o: m[1].bias.requires_grad_(True),
    "converted": lambda m, o: m.double(),
    "added to the inner": lambda m, o: o.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
}  # fmt: skip

SAID = {
    "periods differ": "period differs between the ranks: 2 on ranks 0 and 2; 3 on rank 1. Workers that",
    "methods differ": "method differs between the ranks: 'LocalSGD' on rank 0; 'DiLoCo' on ranks 1 and 2",
    "betas differ": "beta differs between the ranks: 0.5 on rank 0; 0.6 on rank 1; 0.7 on rank 2",
    "graphs differ": "mixing differs between the ranks",
    "models differ": "the ranks built different models: rank 0 has weight [2, 3] float32, rank 1 has weight [2, 4]",
    "period changed": "steps since the last meeting differs between the ranks: 2 on ranks 0 and 2; 3 on rank 1",
    "met too early": "steps since the last meeting differs between the ranks: 1 on ranks 0 and 1; 2 on rank 2",
    "states differ": "state differs between the ranks: [] on rank 0; ['momentum_buffer of weight', 'momentum_",
    "not the model's": "parameter 0 of the optimizer, of shape [2, 3], is not the model's",
    "wrapped twice": "the optimizer is a LocalSGD already",
    "class": "pass an optimizer, as torch.optim has them; got <class",
    "all frozen": "the optimizer trains no parameter: all of them are frozen",
    "replaced": "0.weight: frozen when the module was wrapped, or another tensor since then",
    "unfrozen": "1.bias: frozen when the module was wrapped",
    "converted": "0.weight was [2, 3] of float32 on cpu when the optimizer was wrapped, and is [2, 3] of float64",
    "added to the inner": "the optimizer has other parameters than when it was wrapped: 1 new",
    "added": "parameters cannot be added to a wrapped optimizer",
    "another start": "the saved round began with [8] numbers, this model has [16]",
    "another center": "the saved center has [8] numbers, this rank's has [3]",
    "negative loss": "must be above 0; it is -1.0",
}


def test_mistakes_are_told_on_every_rank():
    run = launch(mistakes, 3, timeout=240)
    for found in run:
        assert found.keys() == SAID.keys()
        for name, message in found.items():
            assert SAID[name] in message, f"{name}: {message}"


@pytest.mark.parametrize("period", [0, -1, 2.5, True, None])
@pytest.mark.parametrize("method", [LocalSGD, ElasticAveraging, DiLoCo])
def test_a_period_is_at_least_one_step(method, period):
    model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match=re.escape(f"1 or more (1: in each step); got {period!r}")):
        method(model, sgd(model), period)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, o: ElasticAveraging(m, o, 2, 1.2), "beta is how far the center moves to the mean, 0 to 1"),
        (lambda m, o: ElasticAveraging(m, o, 2, math.nan), "0 to 1 (beyond it, it overshoots); got nan"),
        (lambda m, o: DiLoCo(m, o, 2, 0.0), "outer_lr is above 0 and outer_momentum in [0, 1); got 0.0 and 0.9"),
        (lambda m, o: DiLoCo(m, o, 2, 0.7, 1.0), "got 0.7 and 1.0"),
        (lambda m, o: LocalSGD(m, o, 2, -1), "synchronous_steps is a number of steps; got -1"),
        (lambda m, o: AdaComm(o, 0), "interval is a number of steps, 1 or more; got 0"),
        (lambda m, o: AdaComm(o, 5, 1.5), "shrink is a factor, above 0 and at most 1; got 1.5"),
    ],
)  # fmt: skip
def test_rates_out_of_range(make, message):
    model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match=re.escape(message)):
        make(model, sgd(model))
