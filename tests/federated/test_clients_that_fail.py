"""A client that diverges, and models that draw: the round goes on, the model is the server's, ranks do the same."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dtcourse import launch
from dtcourse.federated import (
    Accountant,
    Clients,
    ClientWork,
    FedAvg,
    Scaffold,
    SecureFedAvg,
    renyi_divergence,
)
from dtcourse.federated.clients import generator, place_in
from tests.federated.references import LR, SEED, build, federation, flat

CLIENTS = federation()
BAD = max(range(len(CLIENTS)), key=lambda k: CLIENTS.sizes[k])


def with_one_bad(value):
    inputs = CLIENTS.inputs.clone()
    inputs[CLIENTS.parts[BAD]] *= value
    return Clients(inputs, CLIENTS.targets, CLIENTS.parts)


def without_it():
    parts = [p[:0] if k == BAD else p for k, p in enumerate(CLIENTS.parts)]
    return Clients(CLIENTS.inputs, CLIENTS.targets, parts)


def one_diverges():
    found = {}
    for name, method, options in (
        ("FedAvg", FedAvg, {}),
        ("SCAFFOLD", Scaffold, {}),
        ("secure", SecureFedAvg, {"threshold": 6}),
    ):
        if name == "secure":
            pytest.importorskip("cryptography")
        federated = method(build(), with_one_bad(math.inf), work(), seed=SEED, **options)
        reports = [federated.round() for _ in range(2)]
        found[name] = federated.x, reports
    dropping = nn.Sequential(nn.Linear(64, 6), nn.Dropout(0.5), nn.Linear(6, 10)).double()
    with torch.no_grad():
        for i, p in enumerate(dropping.parameters()):
            p.copy_(torch.randn(p.shape, generator=generator(i)))
    torch.manual_seed(place_in()[0])
    before = torch.get_rng_state()
    federated = FedAvg(dropping, CLIENTS, work(), seed=SEED)
    federated.round()
    assert torch.equal(before, torch.get_rng_state())
    found["dropout"] = federated.x, []
    return found


def work(steps=2):
    return ClientWork(F.cross_entropy, LR, steps, 5)


@pytest.fixture(scope="module")
def alone():
    return one_diverges()


def test_a_client_that_diverges_is_left_out_with_a_sentence(alone):
    for name, method in (("FedAvg", FedAvg), ("SCAFFOLD", Scaffold), ("secure", FedAvg)):
        x, reports = alone[name]
        if method is FedAvg:
            right = FedAvg(build(), without_it(), work(), seed=SEED)
            for _ in range(2):
                right.round()
            torch.testing.assert_close(x, right.x, rtol=0, atol=1e-12 if name == "FedAvg" else 1e-8)
        assert x.isfinite().all()
        for report in reports:
            assert BAD not in report.trained
            assert (
                f"client {BAD}'s change has a number that is NaN or infinite" in report.skipped[BAD]
            )
            assert report.samples == sum(CLIENTS.sizes[k] for k in report.trained)


def test_two_ranks_do_the_same(alone):
    for found in launch(one_diverges, 2, backend="ring", timeout=240):
        for name, (x, reports) in found.items():
            torch.testing.assert_close(x, alone[name][0], rtol=0, atol=1e-12)
            # masked messages are counted by rank too; all else is the same
            assert reports == alone[name][1], name


def test_the_model_is_the_servers_after_an_error():
    def broken(outputs, targets):
        if len(calls) == 3:
            raise RuntimeError("no memory for client")
        calls.append(1)
        return F.cross_entropy(outputs, targets)

    calls: list[int] = []
    federated = FedAvg(build(), CLIENTS, ClientWork(broken, LR, 2, 5), seed=SEED)
    with pytest.raises(RuntimeError, match="no memory"):
        federated.round()
    assert torch.equal(flat(federated.vector.model), federated.x)


def test_an_epoch_has_each_sample_once():
    batches = list(ClientWork(F.cross_entropy, LR, 1, 5).batches(12, 6, generator(SEED, "here")))
    assert [len(b) for b in batches] == [5, 5, 2] * 2
    for epoch in (batches[:3], batches[3:]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(12))
    assert not torch.equal(torch.cat(batches[:3]), torch.cat(batches[3:]))


def test_control_variates_of_other_ranks_are_not_zero_in_silence():
    federated = Scaffold(build(), CLIENTS, work(), seed=SEED)
    federated.rank, federated.world_size = 1, 2
    with pytest.raises(ValueError, match="client 2 lives on rank 0, and this is rank 1"):
        federated.control_variates([1, 2])


def test_thresholds_that_can_never_be_met_are_refused_at_the_start():
    for threshold in (-3, 0, 1, 3, 7):
        with pytest.raises(ValueError, match=rf"the threshold is .*4 to 6; got {threshold}"):
            SecureFedAvg(build(), CLIENTS, work(), 6, threshold=threshold)


def test_an_order_whose_series_does_not_end_is_not_chosen():
    with pytest.raises(ValueError, match=r"the series of order 1\.1 does not end"):
        renyi_divergence(0.5, 2048.0, 1.1)
    epsilon = Accountant([1.1, 64]).epsilon_after(0.5, 2048.0, 1000, 1e-6)
    assert epsilon == Accountant([64]).epsilon_after(0.5, 2048.0, 1000, 1e-6)
