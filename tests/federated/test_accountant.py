"""The accountant, held against dp-accounting's values and against the integral that its formulas stand for."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from dtcourse.federated import (
    Accountant,
    Budget,
    BudgetSpent,
    noise_multiplier_for,
    renyi_divergence,
)
from dtcourse.federated.accountant import epsilon_of

# Made by dp-accounting 0.6.0 in an environment of its own (other versions are in the file): RdpAccountant composes
# SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise_multiplier)), steps). Its divergences of orders
# that are no whole numbers are upper bounds: it adds the terms of the two series without their signs. null: it gave the
# order up, since the terms had not vanished after 1,000.
VALUES = json.loads(Path(__file__).with_name("dp_accounting_values.json").read_text())
# With the signs, as its own test had them before (google/differential-privacy, rdp_privacy_accountant_test.py,
# test_compute_rdp_poisson_sampled_gaussian): 50 steps, rate 0.01, noise multiplier 2.5.
PRINTED = {1.5: 6.5007e-04, 2.5: 1.0854e-03, 5: 2.1808e-03, 50: 2.3846e-02, 100: 1.6742e02}
# (rate, noise multiplier, order): those of dp-accounting's own tests, and one that it gives up
CASES = [
    (1e-7, 0.1, 1.01),
    (1e-6, 0.1, 256),
    (1e-5, 0.1, 256.1),
    (1e-6, 1.0, 27),
    (1e-4, 1.0, 1.5),
    (1e-3, 1.0, 2),
    (0.01, 10.0, 20),
    (0.1, 100.0, 20.5),
    (0.99, 0.1, 256),
    (0.999, 100.0, 256.1),
    (0.5, 0.3, 1.1),
]


def log_moment(q, z, a):
    """log E over N(0, z^2) of ((1 - q) + q exp((2 x - 1) / 2 z^2))^a, summed up on a grid."""
    x = torch.linspace(-40 * z, 40 * z + a, 400_001, dtype=torch.float64)
    ratio = torch.logaddexp(
        torch.tensor(math.log1p(-q), dtype=torch.float64), math.log(q) + (2 * x - 1) / (2 * z * z)
    )
    density = -x * x / (2 * z * z) - math.log(z * math.sqrt(2 * math.pi))
    return float(torch.logsumexp(density + a * ratio, 0) + torch.log(x[1] - x[0]))


@pytest.mark.parametrize(
    "run", VALUES["runs"], ids=lambda run: f"{run['rate']}, {run['noise_multiplier']}"
)
def test_the_accountant_gives_dp_accountings_values(run):
    q, z, steps = run["rate"], run["noise_multiplier"], run["steps"]
    accountant = Accountant(VALUES["orders"])
    accountant.spend(q, z, steps - 1)
    accountant.spend(q, z)
    for a, mine, theirs in zip(
        accountant.orders, accountant.divergences, run["divergences"], strict=True
    ):
        if a == int(a):
            assert mine == pytest.approx(theirs, rel=1e-9), a
        elif theirs is not None:
            assert mine <= theirs * (1 + 1e-9), a
    whole = Accountant(VALUES["whole orders"])
    whole.spend(q, z, steps)
    ours = Accountant()
    ours.spend(q, z, steps)
    for delta, theirs in run["epsilon"].items():
        assert whole.epsilon(float(delta)) == pytest.approx(theirs, rel=1e-9)
        # more orders to choose from: never worse
        assert 0.9 * theirs < ours.epsilon(float(delta)) <= theirs * (1 + 1e-9)


def test_fractions_are_what_dp_accounting_printed():
    accountant = Accountant(list(PRINTED))
    accountant.spend(0.01, 2.5, 50)
    assert accountant.divergences == pytest.approx(list(PRINTED.values()), rel=3e-5)


@pytest.mark.parametrize("case", CASES)
def test_divergences_are_the_integrals(case):
    q, z, a = case
    mine = renyi_divergence(q, z, a) * (a - 1)
    assert mine == pytest.approx(log_moment(q, z, a), rel=1e-5, abs=1e-9)


def test_whole_orders_and_fractions_meet():
    for a in (2, 3, 17):
        near = renyi_divergence(0.05, 1.2, a + 1e-7)
        assert near == pytest.approx(renyi_divergence(0.05, 1.2, a), rel=1e-5)


def test_epsilon_is_dp_accountings():
    # pure differential privacy, and a Gaussian that is exactly (1, 1e-6)-private, as dp-accounting prints them
    assert epsilon_of(range(2, 33), [1.1] * 31, 1e-5) == pytest.approx(1.32783806176, abs=1e-10)
    dense = Accountant([0.001 * i for i in range(1001, 100000, 7)])
    dense.spend(1.0, 4.530877117)
    assert dense.epsilon(1e-6) == pytest.approx(1.0, abs=1e-4)
    assert Accountant().epsilon(1e-5) == 0
    nothing = Accountant([2.0])
    nothing.spend(0.1, 0.0)
    assert nothing.epsilon(1e-5) == math.inf


def test_a_budget_is_kept_to_the_step():
    budget, q, z = Budget(2.0, 1e-4), 0.1, 1.5
    accountant, steps = Accountant(), 0
    with pytest.raises(BudgetSpent, match=r"epsilon is .* of 2 at delta = 0.0001, and 1 more step"):
        while True:
            accountant.require(budget, q, z)
            accountant.spend(q, z)
            steps += 1
    assert steps > 3
    assert accountant.epsilon(1e-4) <= 2 < accountant.epsilon_after(q, z, 1, 1e-4)
    smallest = noise_multiplier_for(budget, q, steps)
    assert z - 0.1 < smallest <= z + 1e-3
    assert Accountant().epsilon_after(q, smallest, steps, 1e-4) <= 2
    assert Accountant().epsilon_after(q, smallest - 2e-3, steps, 1e-4) > 2


def test_mistakes_get_sentences():
    for attempt, words in (
        (lambda: Accountant([1.0, 2.0]), "orders are above 1"),
        (lambda: Budget(0, 1e-5), "epsilon is above 0"),
        (lambda: Budget(math.inf, 1e-5), "epsilon is above 0 and finite"),
        (lambda: Budget(1.0, 1.0), "delta is between 0 and 1"),
        (lambda: Accountant([]), "there is no order"),
        (lambda: Accountant([2, math.inf]), "orders are above 1 and finite"),
        (lambda: Accountant().spend(0.1, 1.0, steps=-1), "steps is a whole number, 0 or more; got -1"),
        (lambda: Accountant().spend(0.1, 1.0, steps=0.5), "steps is a whole number"),
        (lambda: Accountant().epsilon(1.0), "delta is between 0 and 1; got 1.0"),
        (lambda: Accountant().epsilon(0.0), "delta is between 0 and 1; got 0.0"),
        (lambda: noise_multiplier_for(Budget(1, 1e-5), 0.1, 0), "steps is a whole number, 1 or more"),
        (lambda: noise_multiplier_for(Budget(1, 1e-5), 0.1, 1, 0.0), "precision is above 0"),
        (lambda: noise_multiplier_for(Budget(1, 1e-5), 1.5, 1), "the rate is a probability"),
        *(
            (lambda q=q, z=z, a=a: renyi_divergence(q, z, a), "the rate is a probability")
            for q, z, a in (
                (1.1, 1, 2), (-0.1, 1, 2), (math.nan, 1, 2), (0.1, -1, 2), (0.1, math.nan, 2),
                (0.1, 1, 1), (0.1, 1, math.nan),
            )
        ),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            attempt()
    spent = Accountant()
    spent.spend(0.1, 1.0, 10)
    before = spent.epsilon(1e-5)
    with pytest.raises(ValueError, match="steps is a whole number"):
        spent.spend(0.1, 1.0, -10)
    assert spent.epsilon(1e-5) == before


def test_no_noise_tells_all_and_endless_noise_nothing():
    for z in (0.0, 1e-200):
        assert renyi_divergence(0.1, z, 2) == renyi_divergence(1.0, z, 2.5) == math.inf
        nothing = Accountant()
        with pytest.raises(BudgetSpent, match="1 more step"):
            nothing.require(Budget(100.0, 1e-3), 0.1, z)
        assert nothing.epsilon(1e-3) == 0
    quiet = Accountant()
    quiet.spend(0.1, math.inf, 1000)
    quiet.spend(0.0, 1.0, 1000)
    assert quiet.epsilon(1e-5) == 0
