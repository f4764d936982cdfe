"""Balance follows measured speed: near the ideal time, again soon after a change, at rest under noise."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import emulation, launch
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.heterogeneous import (
    Balance,
    Capability,
    Hysteresis,
    Meter,
    WeightedDataParallel,
    ideal_seconds,
    limits_of_all_ranks,
    measured,
)

TOTAL = 96  # of the balances whose work is slept
TRAINED = 960  # that is computed: so large that the optimizer's step is little
FAST = EmulatedDevice(flops=1e9, bandwidth=4e9)
SLOW_RANK = 2


def model_of(width=64):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 8)).double()


# --- a training on emulated devices ----------------------------------------------------------------------------


def trained(steps):
    """Seconds of each step on the emulated clock (of all ranks, from the end of one to that of the next), the shares,
    and what the model is in the end.
    """
    inner = model_of()
    model, balance = WeightedDataParallel(inner), Balance(TRAINED)
    optimizer = torch.optim.SGD(inner.parameters(), 0.05)
    took, shares = [], []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(TRAINED, 64, dtype=torch.float64, generator=generator)
        y = torch.randint(8, (TRAINED,), generator=generator)
        dist.barrier()
        began = emulation.now()
        shares.append(list(balance.shares))
        mine = balance.mine
        optimizer.zero_grad()
        with model.step(len(mine)):
            outputs = model(x[mine.start : mine.stop])
            loss = nn.functional.cross_entropy(outputs, y[mine.start : mine.stop])
            model.weigh(loss).backward()
        optimizer.step()
        balance.after(model.seconds)
        dist.barrier()
        took.append(emulation.now() - began)
    state = {n: p.detach().clone() for n, p in inner.named_parameters()}
    return took, shares, balance.moved, state, measured_alone()


def measured_alone():
    inner, x = model_of(), torch.randn(TRAINED, 64, dtype=torch.float64)
    return [one.speed for one in measured(lambda: inner(x).sum().backward(), TRAINED)]


@pytest.fixture(scope="module")
def run():
    devices = [FAST.slower(3) if rank == SLOW_RANK else FAST for rank in range(4)]
    return launch(trained, 4, 12, devices=devices, network=EmulatedNetwork(latency=1e-6))


def test_one_rank_three_times_slower_costs_less_than_a_tenth_over_the_ideal_time(run):
    took, shares, moved, _, speeds = run[0]
    assert [round(speeds[0] / one, 3) for one in speeds] == [1, 1, 3, 1]
    ideal = ideal_seconds(TRAINED, speeds)
    assert took[0] > 2 * ideal, "equal shares wait for the slow one"
    assert max(took[-4:]) < 1.1 * ideal
    assert shares[0] == [240] * 4 and shares[-1][SLOW_RANK] in range(90, 100)
    assert 1 <= len(moved) <= 2 and all(found[1] == shares for found in run)


def test_the_model_is_that_of_one_process(run):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(12):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(TRAINED, 64, dtype=torch.float64, generator=generator)
        y = torch.randint(8, (TRAINED,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    for found in run:
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found[3][name], parameter.detach(), rtol=0, atol=1e-12)


# --- speeds that change, and noise: work that is slept --------------------------------------------------------


def changing(steps, change, noise, slow_before, slow_after):
    """Seconds of each step, and when the shares moved. From step `change` on another rank is the slow one."""
    rank, balance = dist.get_rank(), Balance(TOTAL)
    rng = random.Random(rank)
    took = []
    for step in range(steps):
        slow = slow_before if step < change else slow_after
        each = 0.03 if rank == slow else 0.01
        seconds = each * len(balance.mine) + 0.004  # what a step costs whatever its share is
        if noise:
            seconds *= rng.lognormvariate(0, noise) * (4 if rng.random() < 0.05 else 1)
        emulation.sleep(seconds)
        took.append(max(_everyones(seconds)))
        balance.after(seconds)
    return took, balance.moved, balance.shares


def _everyones(seconds):
    found = [torch.empty(1, dtype=torch.float64) for _ in range(4)]
    dist.all_gather(found, torch.tensor([seconds], dtype=torch.float64))
    return [float(one) for one in found]


def scenarios():
    return {
        "another is slow": changing(40, 20, 0.0, 0, 3),
        "it recovers": changing(40, 20, 0.0, 1, None),
        "noise": changing(150, 150, 0.05, 1, 1),
        "noise and change": changing(70, 40, 0.05, 1, 2),
        "nobody slow, noise": changing(80, 80, 0.05, None, None),
    }


@pytest.fixture(scope="module")
def runs():
    return launch(scenarios, 4, network=EmulatedNetwork(), clock="virtual")[0]


IDEAL = ideal_seconds(TOTAL, [100, 100, 100, 100 / 3])


@pytest.mark.parametrize(("what", "after"), [("another is slow", IDEAL), ("it recovers", 0.24)])
def test_ten_steps_after_a_change_it_is_near_the_ideal_again(runs, what, after):
    took, moved, _ = runs[what]
    assert max(took[10:20]) < 1.1 * IDEAL
    assert took[20] > 1.2 * after, "the change is felt"
    assert max(took[30:]) < 1.1 * after
    assert len([step for step in moved if step >= 20]) <= 2


def test_noise_does_not_make_it_flap(runs):
    took, moved, shares = runs["noise"]
    assert 1 <= len(moved) <= 4 and moved[-1] < 60, "it has settled, and stays"
    assert shares[1] in range(9, 12)
    middle = sorted(took[20:])[len(took[20:]) // 2]
    assert middle < 1.25 * IDEAL, "the slowest of four noisy ranks is above each of them"
    assert len(runs["nobody slow, noise"][1]) <= 1


def test_a_change_is_found_among_noise(runs):
    _, moved, shares = runs["noise and change"]
    assert any(40 <= step <= 52 for step in moved) and len(moved) <= 5
    assert shares[2] < 14 < min(shares[0], shares[1], shares[3])


# --- its parts --------------------------------------------------------------------------------------------------


def known(*seconds, error=0.0):
    return [Capability(each, error * each, 5) for each in seconds]


def test_hysteresis_asks_for_a_gain_that_is_large_enough_sure_and_seen_twice():
    rule = Hysteresis(threshold=0.05, patience=2)
    assert [rule.moves([1.04], [1.0], known(1.0)) for _ in range(3)] == [False] * 3
    assert [rule.moves([1.06], [1.0], known(1.0)) for _ in range(3)] == [False, True, False]
    assert not any(rule.moves([1.06], [1.0], known(1.0, error=0.02)) for _ in range(5))
    seen = [(1.2, False), (1.0, False), (1.2, False), (1.2, True)]
    assert [rule.moves([now], [1.0], known(1.0)) for now, _ in seen] == [one for _, one in seen]


def test_one_outlier_changes_no_capability():
    meter = Meter(5)
    for seconds in (2.0, 2.0, 90.0, 2.0, 2.0):
        meter.add(seconds, 4)
    assert meter.capability() == Capability(0.5, 0.0, 5) and meter.capability().speed == 2.0


def test_after_half_a_window_a_capability_has_changed():
    meter = Meter(7)
    found = [meter.add(1.0, 1) or meter.capability().seconds for _ in range(7)]
    found += [meter.add(3.0, 1) or meter.capability().seconds for _ in range(4)]
    assert found == [1.0] * 10 + [3.0]


def test_the_error_of_a_median_is_that_of_medians_drawn_anew():
    rng = random.Random(0)
    medians, errors = [], []
    for _ in range(2000):
        meter = Meter(25)
        for _ in range(25):
            meter.add(1 + 0.05 * rng.gauss(0, 1), 1)
        medians.append(meter.capability().seconds)
        errors.append(meter.capability().error)
    mean = sum(medians) / len(medians)
    spread = math.sqrt(sum((one - mean) ** 2 for one in medians) / len(medians))
    assert sum(errors) / len(errors) == pytest.approx(spread, rel=0.1)


def _mistakes():
    said = []
    rank = dist.get_rank()
    for act in (
        lambda: Balance(2).after(0.0 if rank == 1 else 1.0),
        lambda: measured(lambda: emulation.sleep(rank * 0.0), 4),
        lambda: Balance(1),
        lambda: Balance(12, speeds=[2.0, 1.0 + rank]),
        lambda: Balance(12, limits=[12, 6 + rank]),
        lambda: Balance(12, limits=6 + rank),
        lambda: Balance(12, limits=12),
        lambda: limits_of_all_ranks(1000, 900, 300 if rank else 20),
    ):
        try:
            act()
        except ValueError as error:
            said.append(str(error))
    assert Balance(12, speeds=[2.0, 1.0]).shares == [8, 4]
    assert limits_of_all_ranks(1000 + 100 * rank, 900, 20) == [5, 10]
    limits = (6, 12) if rank else [6, 12]
    assert Balance(12, limits, speeds=[2, 1.0]).shares == [6, 6]
    return said


def test_what_was_not_measured_is_said_on_all_ranks():
    for said in launch(_mistakes, 2, network=EmulatedNetwork(), clock="virtual"):
        assert said[0].startswith("rank 1 has measured no time for its samples:")
        assert said[1].startswith("the work took no time on rank 0")
        assert said[2].startswith("2 ranks cannot have 1 samples each of a batch of 1")
        assert said[3].startswith("speeds differs between the ranks:")
        assert said[4].startswith("limits differs between the ranks: [12.0, 6.0] on rank 0; ")
        assert said[5].startswith("limits differs between the ranks: 6 on rank 0; 7 on rank 1.")
        assert said[6] == "limits are a list, with a number of each rank; got 12"
        assert "rank 1 has no memory for one sample: of its 1,000 bytes" in said[7]


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: Hysteresis(0.0), "threshold is above 0"),
        (lambda: Hysteresis(0.1, 0), "patience 1 or more"),
        (lambda: Meter(2), "a window of 3 or more"),
        (lambda: Meter().add(0.0, 1), "some work that takes some time"),
        (lambda: Meter().add(math.inf, 1), "some work that takes some time"),
        (lambda: Meter().add(math.nan, 1), "some work that takes some time"),
    ],
)
def test_what_cannot_be_is_refused(act, said):
    with pytest.raises(ValueError, match=said):
        act()
