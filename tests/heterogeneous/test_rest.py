"""Balance comes to rest: under noise, where a move gains nothing, and in a training whose last batch is smaller."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse import emulation, launch
from dtcourse.emulation import EmulatedNetwork
from dtcourse.heterogeneous import (
    Balance,
    Capability,
    Hysteresis,
    Meter,
    WeightedDataParallel,
    measured,
    proportional_shares,
)

# --- the rule alone: all ranks in one process -----------------------------------------------------------------------


def balanced(total, ranks, steps, seconds_of):
    """When shares moved, and what they are in the end. seconds_of: rank, share -> seconds of a step."""
    meters, rule = [Meter() for _ in range(ranks)], Hysteresis()
    shares = earlier = proportional_shares(total, [1.0] * ranks)
    moved = []
    for step in range(steps):
        for rank, meter in enumerate(meters):
            meter.add(seconds_of(rank, shares[rank]), shares[rank])
        known = [meter.capability() for meter in meters]
        if known[0].number < 3:
            continue
        better = proportional_shares(total, [one.speed for one in known], None, 1)
        now, then = (
            [share * one.seconds for share, one in zip(each, known, strict=True)]
            for each in (shares, better)
        )
        if rule.goes_back(now):
            better = earlier
        elif not rule.moves(now, then, known):
            continue
        earlier, shares = shares, better
        moved.append(step)
        for meter in meters:
            meter.clear()
    return moved, shares


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("ranks", [4, 16])
def test_one_slow_rank_is_relieved_and_then_noise_moves_nothing(ranks, noise):
    later = []
    for seed in range(5):
        rng = random.Random(seed)

        def seconds(rank, share, rng=rng):
            return share * (0.03 if rank == 0 else 0.01) * rng.lognormvariate(0, noise)

        moved, shares = balanced(24 * ranks, ranks, 120, seconds)
        assert moved and shares[0] < 24, seed
        later += [step for step in moved if step >= 20]
    assert len(later) <= 2, later  # one move and its way back in 500 steps


def test_where_time_does_not_depend_on_the_share_a_move_is_undone_and_not_tried_again():
    """Ranks that wait for themselves: 10 and 13 ms, whatever they are given."""
    moved, shares = balanced(64, 2, 60, lambda rank, share: 0.013 if rank else 0.010)
    assert moved == [3, 6] and shares == [32, 32]


def test_after_a_move_in_vain_another_speed_is_followed_again():
    looks = iter(range(100))

    def seconds(rank, share):
        later = next(looks) >= 40  # two ranks' looks: from step 20 on work depends on the share
        return share * (0.03 if rank else 0.01) if later else (0.013 if rank else 0.010)

    moved, shares = balanced(64, 2, 40, seconds)
    assert moved[:2] == [3, 6] and 20 < moved[2] < 30 and shares == [48, 16]


def test_noise_of_a_rank_that_decides_nothing_holds_nobody_up():
    rule = Hysteresis(threshold=0.05, patience=2)
    known = [Capability(1.0, 0.0, 7), Capability(1.0, 0.0, 7), Capability(1.0, 0.4, 7)]
    looks = [rule.moves([1.6, 0.8, 0.1], [0.9, 1.0, 0.2], known) for _ in range(2)]
    assert looks == [False, True]
    noisy = [known[2], *known[:2]]
    assert not any(rule.moves([1.6, 0.8, 0.1], [0.9, 1.0, 0.2], noisy) for _ in range(5))


def test_one_or_two_measurements_say_nothing_of_their_error():
    meter = Meter()
    errors = []
    for seconds in (1.0, 1.0, 1.0, 1.2):
        meter.add(seconds, 1)
        errors.append(meter.capability().error)
    assert errors[:2] == [math.inf, math.inf] and errors[2] == 0.0


def test_the_error_of_few_measurements_is_not_too_small():
    rng = random.Random(0)
    for number in (3, 5, 7):
        medians, errors = [], []
        for _ in range(4000):
            meter = Meter(number)
            for _ in range(number):
                meter.add(1 + 0.05 * rng.gauss(0, 1), 1)
            medians.append(meter.capability().seconds)
            errors.append(meter.capability().error)
        mean = sum(medians) / len(medians)
        spread = math.sqrt(sum((one - mean) ** 2 for one in medians) / len(medians))
        assert 0.97 * spread < sum(errors) / len(errors) < 1.25 * spread, number


# --- a training in which another rank becomes slow, through the model's own seconds ---------------------------------

SAMPLES, TOTAL, EPOCHS, FEATURES, CHANGE = 100, 32, 5, 4, 10


class Slept(nn.Module):
    """Each sample takes three times as long on the slow rank: rank 0, and rank 2 from step CHANGE on."""

    step = 0

    def forward(self, x):
        slow = 0 if self.step < CHANGE else 2
        emulation.sleep(len(x) * (0.03 if dist.get_rank() == slow else 0.01))
        return x


def build():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(FEATURES, 5), Slept(), nn.Tanh(), nn.Linear(5, 3)]
        return nn.Sequential(*layers).double()


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, FEATURES, dtype=torch.float64, generator=generator)
    return x, torch.randint(3, (SAMPLES,), generator=generator)


def batches():
    x, y = data()
    return [*zip(x.split(TOTAL), y.split(TOTAL), strict=True)] * EPOCHS


def trained():
    inner = build()
    model, balance = WeightedDataParallel(inner), Balance(TOTAL)
    optimizer = torch.optim.SGD(inner.parameters(), 0.1, momentum=0.9)
    shares = []
    for step, (x, y) in enumerate(batches()):
        inner[1].step = step
        mine = balance.of(len(x))
        shares.append(balance.shares)
        part = slice(mine.start, mine.stop)
        optimizer.zero_grad()
        with model.step(len(mine)):
            model.weigh(F.cross_entropy(model(x[part]), y[part])).backward()
        assert sum(model.samples) == len(x)
        optimizer.step()
        balance.after(model.seconds, len(mine))
    return balance.moved, shares, {n: p.detach() for n, p in inner.named_parameters()}


def never_measured():
    """Two samples for three ranks: the third one has none at first, and the first is slow."""
    balance = Balance(2, least=0)
    shares = [balance.shares]
    for _ in range(5):
        balance.after(len(balance.mine) * (0.03 if dist.get_rank() == 0 else 0.01) or None)
        shares.append(balance.shares)
    return shares[0], shares[-1]


def said(act):
    try:
        act()
        return "nothing"
    except ValueError as error:
        return str(error)


def fails_on_rank_1():
    emulation.sleep(0.01)
    if dist.get_rank() == 1:
        raise ValueError("no memory left")


def restarted():
    before, after = Balance(9, speeds=[1.0, 1.0, 7.0]), Balance(9)
    after.load_state_dict(before.state_dict())
    other = Balance(9, limits=[9, 9, 6])
    return before.shares, after.shares, said(lambda: other.load_state_dict(before.state_dict()))


def everything():
    larger = said(lambda: Balance(8).of(9))
    fails = said(lambda: measured(fails_on_rank_1, 4))
    return trained(), never_measured(), fails, larger, restarted()


@pytest.fixture(scope="module")
def run():
    return launch(everything, 3, network=EmulatedNetwork(1e-6), clock="virtual")


def test_shares_follow_another_slow_rank_within_ten_steps(run):
    for (moved, shares, _), *_ in run:
        assert moved == [3, 14]
        assert [shares[0], shares[4], shares[-1]] == [[11, 11, 10], [4, 14, 14], [14, 14, 4]]


def test_with_a_smaller_last_batch_the_model_is_that_of_one_process(run):
    model = nn.Sequential(*(one for one in build() if not isinstance(one, Slept)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for x, y in batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    for (_, _, state), *_ in run:
        for found, right in zip(state.values(), model.parameters(), strict=True):
            torch.testing.assert_close(found, right.detach(), rtol=0, atol=1e-12)


def test_a_rank_that_had_nothing_at_first_is_tried(run):
    for _, shares, *_ in run:
        assert shares == ([1, 1, 0], [0, 1, 1])


def test_what_fails_on_one_rank_is_said_on_all(run):
    assert run[1][2] == "no memory left"
    for rank in (0, 2):
        assert run[rank][2].startswith("rank 1 could not go on, so no rank does: ValueError: no")
    assert all(found[3].startswith("a batch has 1 to 8 samples") for found in run)


def test_a_restart_goes_on_with_the_shares_of_its_checkpoint(run):
    for found in run:
        before, after, refused = found[4]
        assert before == after == [1, 1, 7] and "of another number of ranks, batch or" in refused
