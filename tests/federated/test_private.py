"""Clipping, noise and sampling, for each sample and for each client; what is left without them; budgets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dtcourse import launch
from dtcourse.federated import (
    Budget,
    BudgetSpent,
    ClientLevelFedAvg,
    Clients,
    ClientWork,
    FedAvg,
    SampleLevelWork,
    clipped,
    per_sample_gradients,
    poisson_sample,
    system_random,
)
from dtcourse.federated.clients import generator
from dtcourse.federated.vectors import ModelVector
from tests.federated.references import LR, SEED, build, federation, private_clients, private_samples

CLIENTS = federation()
WITH_DATA = sum(size > 0 for size in CLIENTS.sizes)


NOISE_SEED, TIGHT = 17, 0.05


def private(steps=2, rate=0.5, max_norm=1.0, noise=1.0, budget=None, noise_seed=NOISE_SEED):
    return SampleLevelWork(
        F.cross_entropy, LR, steps, rate=rate, max_norm=max_norm, noise_multiplier=noise, budget=budget,
        noise_seed=noise_seed,
    )  # fmt: skip


def client_level(
    rate=0.5, max_norm=1.0, noise=1.0, budget=None, lr=LR, noise_seed=NOISE_SEED, clients=CLIENTS
):
    return ClientLevelFedAvg(
        build(), clients, ClientWork(F.cross_entropy, lr, 2), SEED,
        rate=rate, max_norm=max_norm, noise_multiplier=noise, budget=budget, noise_seed=noise_seed,
    )  # fmt: skip


def both_levels():
    found = []
    for federated in (
        client_level(max_norm=TIGHT),
        FedAvg(build(), CLIENTS, private(max_norm=TIGHT), seed=SEED),
        client_level(noise_seed=None),
    ):
        for _ in range(2):
            federated.round()
        found.append(federated.x)
    return found


@pytest.mark.parametrize("p", [1, 2])
def test_ranks_do_what_the_papers_say(p):
    """Where each change, and each sample's gradient, is longer than what it is clipped to."""
    run = [both_levels()] if p == 1 else list(launch(both_levels, p, backend="ring", timeout=240))
    right = (0.5, TIGHT, 1.0, NOISE_SEED)
    for found in run:
        torch.testing.assert_close(
            found[0], private_clients(CLIENTS, 2, *right), rtol=0, atol=1e-12
        )
        torch.testing.assert_close(
            found[1], private_samples(CLIENTS, 2, *right), rtol=0, atol=1e-12
        )
        assert torch.equal(found[2], run[0][2])  # noise that nobody has chosen is all ranks'


def test_noise_is_new_in_each_run_round_client_and_step():
    def noises(seed):
        federated, work = (
            client_level(lr=1e-12, noise_seed=seed),
            private(1, max_norm=1e-9, noise=1e9, noise_seed=seed),
        )
        xs = [federated.x, *(federated.round() and federated.x for _ in range(2))]
        vector = ModelVector(build())
        x, data = vector.read(), (CLIENTS.inputs[:1], CLIENTS.targets[:1])
        drawn = [generator(SEED, "work", 0, client) for client in (0, 1)]
        ys = [work.train(vector, x, data, 1, draw) for draw in drawn]
        return [xs[1] - xs[0], xs[2] - xs[1], ys[0] - x, ys[1] - x]

    vectors = torch.stack([*noises(None), *noises(None), *noises(1), *noises(2)])
    like = torch.corrcoef(vectors) - torch.eye(len(vectors))
    assert like.abs().max() < 6 / vectors.shape[1] ** 0.5
    assert torch.equal(torch.stack(noises(1)), vectors[8:12])


def test_no_generator_of_torch_draws_what_is_to_stay_secret(monkeypatch):
    """One on the CPU keeps 32 bits of its seed: who tries them all has the noise, and who was drawn."""
    seeds = (5, 5 + (7 << 32))
    short = [torch.rand(3, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    assert torch.equal(*short), "torch keeps more of a seed now: say so in system_random.py"
    vector, data = ModelVector(build()), (CLIENTS.inputs[:9], CLIENTS.targets[:9])
    federated, work, draw = client_level(noise_seed=None), private(noise_seed=None), generator(1)

    def refuse(*args, **kwargs):
        raise AssertionError("drawn by a generator of torch's")

    monkeypatch.setattr(torch, "randn", refuse)
    monkeypatch.setattr(torch, "rand", refuse)
    assert work.train(vector, vector.read(), data, 2, draw).isfinite().all()
    federated.round()
    drawn = {tuple(federated.draw_clients(0)) for _ in range(40)}
    assert len(drawn) > 1, "the public seed does not say who takes part"


def test_the_systems_numbers_are_uniform_and_normal():
    flat, bell = system_random.uniform((40_000,)), system_random.normal((200, 200)).flatten()
    assert flat.dtype == bell.dtype == torch.float64 and flat.min() >= 0 and flat.max() < 1
    for numbers, cdf in ((flat, lambda x: x), (bell, torch.special.ndtr)):
        ordered = cdf(numbers.sort().values)
        steps = torch.arange(1, len(numbers) + 1) / len(numbers)
        # Kolmogorov and Smirnov's distance: above this once in 10^9 times
        assert (ordered - steps).abs().max() < 3.3 / len(numbers) ** 0.5
    assert system_random.normal((0,)).shape == (0,)


def test_what_is_not_finite_is_clipped_to_nothing():
    """A bound that NaN passes is none: one sample would turn the whole sum into NaN."""
    rows = torch.tensor([[torch.nan, 1.0], [torch.inf, 0.0], [-torch.inf, torch.nan], [3.0, 4.0]])
    assert torch.allclose(clipped(rows, 1.0), torch.tensor([[0, 0], [0, 0], [0, 0], [0.6, 0.8]]))
    for dtype, huge in ((torch.float32, 3e38), (torch.float64, 1e308)):
        long = clipped(torch.tensor([[huge, 0.0], [huge, -huge], [0.0, 0.0]], dtype=dtype), 0.5)
        assert torch.allclose(long.norm(dim=1), torch.tensor([0.5, 0.5, 0.0], dtype=dtype))
    inputs = CLIENTS.inputs.clone()
    bad = max(range(len(CLIENTS)), key=lambda k: CLIENTS.sizes[k])
    inputs[CLIENTS.parts[bad][0]] = torch.inf
    broken = Clients(inputs, CLIENTS.targets, CLIENTS.parts)
    federated = client_level(rate=1.0, clients=broken)
    federated.round()
    assert federated.x.isfinite().all()
    federated = FedAvg(build(), broken, private(rate=1.0), seed=SEED)
    federated.round()
    assert federated.x.isfinite().all()


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
    vector = ModelVector(build())
    x, y = CLIENTS.inputs[:0], CLIENTS.targets[:0]
    within = 5 / (2 * vector.n) ** 0.5
    work = private(rate=0.25, max_norm=3.0, noise=2.0)
    alone = work.gradient(
        vector, x, y, 40, generator(0, "noise")
    )  # an empty batch: noise, by rate n
    assert alone.std() * 0.25 * 40 / 6.0 == pytest.approx(1, abs=within)
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
        (lambda: private(noise=float("nan")), "noise_multiplier 0 or more"),
        (lambda: private(max_norm=float("inf")), "max_norm above 0 and finite"),
        (lambda: client_level(rate=1.5), "rate is in"),
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
