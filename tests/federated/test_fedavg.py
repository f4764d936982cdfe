"""FedAvg, FedProx, SCAFFOLD, FedAdam: the papers' algorithms; SGD where they come to it; on 1, 2 and 4 ranks; bytes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.collectives.counted import Traffic
from dtcourse.federated import (
    Clients,
    ClientWork,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedYogi,
    Scaffold,
    ServerSGD,
)
from tests.federated import references as papers
from tests.federated.references import LR, SEED, build, federation, flat

ROUNDS, ADAM = 3, (0.05, 0.9, 0.99, 1e-2)


def work(steps=1, batch_size=None):
    return ClientWork(F.cross_entropy, LR, steps, batch_size)


def uneven(number, client):
    """Clients that manage different numbers of steps."""
    return 1 + (number + client) % 4


# name -> (class, work, clients drawn, options, the reference's options)
METHODS = {
    "FedAvg": (FedAvg, work(4, 5), 6, {}, {}),
    "FedAvg, equal": (FedAvg, work(3), 11, {"weighting": "clients"}, {"equal": True}),
    "FedProx": (FedAvg, work(uneven, 5), 6, {"mu": 0.7}, {"mu": 0.7}),
    "SCAFFOLD": (Scaffold, work(uneven, 5), 6, {}, {"scaffold": True}),
    "SCAFFOLD, equal": (
        Scaffold,
        work(3),
        4,
        {"weighting": "clients"},
        {"scaffold": True, "equal": True},
    ),
    "FedAdam": (
        FedAvg,
        work(4, 5),
        6,
        {"server": lambda: FedAdam(ADAM[0], ADAM[1:3], ADAM[3])},
        {"adam": ADAM},
    ),
}
# name -> (class, options): one full step of everybody is a step of SGD on all samples
ONE_STEP = {
    "FedAvg": (FedAvg, {}),
    "FedProx": (FedAvg, {"mu": 5.0}),
    "SCAFFOLD": (Scaffold, {}),
}


def train(method, clients, local, num_sampled, options, rounds=ROUNDS):
    options = {k: v() if k == "server" else v for k, v in options.items()}
    model = build()
    federated = method(model, clients, local, num_sampled, SEED, **options)
    reports = [federated.round() for _ in range(rounds)]
    assert torch.equal(flat(model), federated.x)
    return federated.x, reports


def all_methods():
    clients, found = federation(), {}
    for name, (method, local, num, options, _) in METHODS.items():
        with traffic.counting() as sent:
            x, reports = train(method, clients, local, num, options)
        found[name] = x, reports, sent.record()
    for name, (method, options) in ONE_STEP.items():
        found[name, "one step"] = train(method, clients, work(), None, options)[0]
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(rank)
    apart = build()
    with torch.no_grad():
        apart[1].weight.add_(rank)
    found["start"] = FedAvg(apart, clients, work()).x
    return found


@pytest.mark.parametrize("p", [1, 2, 4])
def test_ranks_do_what_the_papers_say(p):
    run = [all_methods()] if p == 1 else list(launch(all_methods, p, backend="ring", timeout=240))
    clients, close = federation(), {"rtol": 0, "atol": 1e-12}
    for name, (method, local, num, _, right) in METHODS.items():
        expected = papers.federated(clients, local, ROUNDS, num, **right)
        for mine, _, _ in (found[name] for found in run):
            torch.testing.assert_close(mine, expected, **close)
            assert torch.equal(mine, run[0][name][0])
        # a vector down to each client, one up from each that has data; two of each in SCAFFOLD
        vectors, nbytes = 1 + (method is Scaffold), 8 * len(expected)
        for number, report in enumerate(run[-1][name][1]):
            assert report == run[0][name][1][number]
            assert report.drawn == clients.drawn(num, SEED, number)
            assert report.trained == [k for k in report.drawn if clients.sizes[k]]
            assert report.samples == sum(clients.sizes[k] for k in report.drawn)
            assert report.down_bytes == vectors * nbytes * num
            assert report.up_bytes == vectors * nbytes * len(report.trained)
        if p > 1:
            together = Traffic.from_ranks([found[name][2] for found in run])
            sent = together.bytes_sent(operation="all_reduce")
            assert sent == ROUNDS * 2 * (p - 1) * (vectors * nbytes + 8), name
    for name in ONE_STEP:
        for found in run:
            torch.testing.assert_close(
                found[name, "one step"], papers.centralised(clients, ROUNDS), **close
            )
    for found in run:
        assert torch.equal(found["start"], run[0]["start"])


def test_a_client_without_data_is_skipped_with_a_sentence():
    clients = federation()
    empty = Clients(
        clients.inputs, clients.targets, [*clients.parts, torch.empty(0, dtype=torch.int64)]
    )
    model = build()
    with_it = FedAvg(model, empty, work(2), seed=SEED)
    report = with_it.round()
    assert "client 11 has no data" in report.skipped[11]
    assert 11 in report.drawn
    assert 11 not in report.trained
    without, _ = train(FedAvg, clients, work(2), None, {}, rounds=1)
    torch.testing.assert_close(with_it.x, without, rtol=0, atol=1e-12)

    nobody = Clients(clients.inputs, clients.targets, [torch.empty(0, dtype=torch.int64)] * 2)
    before = flat(build())
    idle = FedAvg(build(), nobody, work(), server=FedAdam())
    assert not idle.round().trained
    assert torch.equal(idle.x, before)


def test_servers_follow_the_formulas():
    """Reddi et al., algorithm 2, number by number."""
    delta, x, lr, tau = torch.tensor([0.3, -2.0]).double(), torch.zeros(2).double(), 0.1, 0.5
    adagrad, yogi = FedAdagrad(lr, tau=tau), FedYogi(lr, (0.0, 0.9), tau)
    v_a = v_y = tau**2
    for _ in range(3):
        v_a = v_a + delta**2
        v_y = v_y - 0.1 * delta**2 * torch.sign(v_y - delta**2)
        torch.testing.assert_close(adagrad.step(x, delta), lr * delta / (v_a.sqrt() + tau))
        torch.testing.assert_close(yogi.step(x, delta), lr * delta / (v_y.sqrt() + tau))
    heavy = ServerSGD(1.0, momentum=0.5)
    for factor in (1, 1.5, 1.75):
        torch.testing.assert_close(heavy.step(x, delta), factor * delta)
    resumed = FedYogi(lr, (0.0, 0.9), tau)
    resumed.load_state_dict(yogi.state_dict())
    assert torch.equal(resumed.step(x, delta), yogi.step(x, delta))


def test_mistakes_get_sentences():
    clients = federation()
    for attempt, words in (
        (lambda: FedAvg(build(), clients, work(), 12), "1 to 11 clients"),
        (lambda: FedAvg(build(), clients, work(), mu=-1), "mu is 0"),
        (lambda: FedAvg(build(), clients, work(), weighting="size"), '"samples" or "clients"'),
        (lambda: Scaffold(build(), clients, work(), mu=0.1), "in place of FedProx's mu"),
        (lambda: work(0), "steps is 1 or more"),
        (lambda: ClientWork(F.cross_entropy, 0.0), "lr is above 0"),
        (lambda: FedAdam(tau=0), "tau is above 0"),
        (
            lambda: FedAvg(torch.nn.BatchNorm1d(3), clients, work()),
            "running statistics .running_mean, running_var",
        ),
        (lambda: FedAvg(torch.nn.Flatten(), clients, work()), "nothing to train"),
    ):
        with pytest.raises(ValueError, match=words):
            attempt()
