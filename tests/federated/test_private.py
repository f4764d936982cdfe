"""Clipping, noise and sampling, for each sample and for each client; what is left without them; budgets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dtcourse.federated import (
    Budget,
    BudgetSpent,
    ClientLevelFedAvg,
    ClientWork,
    FedAvg,
    SampleLevelWork,
    clipped,
    per_sample_gradients,
    poisson_sample,
)
from dtcourse.federated.clients import generator
from dtcourse.federated.vectors import ModelVector
from tests.federated.references import LR, SEED, build, federation

CLIENTS = federation()
WITH_DATA = sum(size > 0 for size in CLIENTS.sizes)


def private(steps=2, rate=0.5, max_norm=1.0, noise=1.0, budget=None):
    return SampleLevelWork(
        F.cross_entropy,
        LR,
        steps,
        rate=rate,
        max_norm=max_norm,
        noise_multiplier=noise,
        budget=budget,
    )


def client_level(rate=0.5, max_norm=1.0, noise=1.0, budget=None, seed=SEED, lr=LR):
    return ClientLevelFedAvg(
        build(), CLIENTS, ClientWork(F.cross_entropy, lr, 2), seed,
        rate=rate, max_norm=max_norm, noise_multiplier=noise, budget=budget,
    )  # fmt: skip


def test_each_sample_has_its_gradient():
    vector = ModelVector(build())
    x, y = CLIENTS.inputs[:9], CLIENTS.targets[:9]
    each = per_sample_gradients(vector, F.cross_entropy, x, y)
    for i in range(9):
        alone = vector.gradient(F.cross_entropy(vector.model(x[i : i + 1]), y[i : i + 1]))
        torch.testing.assert_close(each[i], alone, rtol=0, atol=1e-13)
    assert per_sample_gradients(vector, F.cross_entropy, x[:0], y[:0]).shape == (0, vector.n)
    length = each.norm(dim=1).median()
    short = clipped(each, length)
    assert short.norm(dim=1).max() <= length * (1 + 1e-12)
    keeps = each.norm(dim=1) <= length
    assert 0 < keeps.sum() < 9
    assert torch.equal(short[keeps], each[keeps])
    torch.testing.assert_close(
        short / short.norm(dim=1, keepdim=True), each / each.norm(dim=1, keepdim=True)
    )


def test_without_noise_clipping_and_sampling_it_is_fedavg():
    plain = FedAvg(build(), CLIENTS, ClientWork(F.cross_entropy, LR, 2), seed=SEED)
    same = FedAvg(build(), CLIENTS, private(rate=1.0, max_norm=1e9, noise=0.0), seed=SEED)
    for _ in range(2):
        plain.round(), same.round()
    torch.testing.assert_close(same.x, plain.x, rtol=0, atol=1e-12)
    each = FedAvg(
        build(), CLIENTS, ClientWork(F.cross_entropy, LR, 2), seed=SEED, weighting="clients"
    )
    start = each.x
    each.round()
    all_of_them = client_level(rate=1.0, max_norm=1e9, noise=0.0)
    all_of_them.round()
    # divided by all clients, those without data too
    expected = start + (each.x - start) * WITH_DATA / len(CLIENTS)
    torch.testing.assert_close(all_of_them.x, expected, rtol=0, atol=1e-12)


def test_what_runs_is_the_accountants_sampling():
    batches = list(private(rate=0.3).batches(50, 4, generator(SEED, "here")))
    draw = generator(SEED, "here")
    assert all(torch.equal(b, poisson_sample(50, 0.3, draw)) for b in batches)
    federated = client_level(rate=0.3)
    for number in range(5):
        drawn = poisson_sample(len(CLIENTS), 0.3, generator(SEED, "clients", number)).tolist()
        assert federated.round().drawn == drawn
    assert federated.accountant.epsilon(1e-3) == pytest.approx(
        federated.accountant.__class__().epsilon_after(0.3, 1.0, 5, 1e-3)
    )


def test_noise_is_as_long_as_the_formula_has_it():
    """The deviation of n = 460 numbers is known to 1 / sqrt(2 n) of it."""
    vector, size = ModelVector(build()), CLIENTS.sizes[0]
    x, y = CLIENTS.inputs[:0], CLIENTS.targets[:0]
    within = 5 / (2 * vector.n) ** 0.5
    work = private(rate=0.25, max_norm=3.0, noise=2.0)
    alone = work.gradient(
        vector, x, y, 40, generator(0, "noise")
    )  # an empty batch: noise, by rate n
    assert alone.std() * 0.25 * 40 / 6.0 == pytest.approx(1, abs=within)
    assert size >= 0
    federated = client_level(rate=0.5, max_norm=3.0, noise=2.0, lr=1e-12)
    start = federated.x
    federated.round()
    assert (federated.x - start).std() * 0.5 * len(CLIENTS) / 6.0 == pytest.approx(1, abs=within)


def test_a_client_changes_the_sum_by_max_norm_at_most():
    federated = client_level(rate=1.0, max_norm=0.01, noise=0.0)
    start = federated.x
    report = federated.round()
    assert len(report.trained) == WITH_DATA
    assert 0 < (federated.x - start).norm() <= 0.01 * WITH_DATA / len(CLIENTS)


def test_a_spent_budget_is_refused_with_a_sentence():
    federated = client_level(budget=Budget(5.0, 1e-2))
    with pytest.raises(BudgetSpent, match="the privacy budget is spent: epsilon is"):
        for _ in range(100):
            federated.round()
    assert 1 <= federated.rounds < 100
    assert federated.accountant.epsilon(1e-2) <= 5
    work = private(steps=4, budget=Budget(6.0, 1e-2))
    federated, reports = FedAvg(build(), CLIENTS, work, 5, SEED), []
    while len(reports) < 50 and not (
        reports and any("budget" in s for s in reports[-1].skipped.values())
    ):
        reports.append(federated.round())
    refused = [k for k, sentence in reports[-1].skipped.items() if "takes part no more" in sentence]
    assert refused
    assert not set(refused) & set(reports[-1].trained)
    assert all(a.epsilon(1e-2) <= 6 for a in work.accountants.values())
    times = sum(refused[0] in report.trained for report in reports)
    assert work.accountants[refused[0]].epsilon(1e-2) == pytest.approx(
        type(work.accountants[refused[0]])().epsilon_after(0.5, 1.0, 4 * times, 1e-2)
    )


def test_mistakes_get_sentences():
    for attempt, words in (
        (lambda: private(rate=0.0), "rate is in"),
        (lambda: private(noise=-1.0), "noise_multiplier 0 or more"),
        (lambda: SampleLevelWork(F.cross_entropy, LR, 1, 8), "leave batch_size out"),
        (
            lambda: ClientLevelFedAvg(
                build(),
                CLIENTS,
                private(),
                rate=1,
                max_norm=1,
                noise_multiplier=1,
                weighting="samples",
            ),
            "counts all clients alike",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            attempt()
