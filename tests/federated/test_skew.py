"""Dirichlet's skews: what they keep exactly, what alpha does, and clients drawn alike on all ranks."""

from __future__ import annotations

import math

import pytest
import torch

from dtcourse.data import digits
from dtcourse.federated import Clients, even_sizes, label_skew, poisson_sample, quantity_skew
from dtcourse.federated.clients import generator

LABELS = digits("train").labels


def entropy(parts):
    """The mean over clients of their labels' entropy, in nats: log 10 = 2.3 without skew."""
    shares = torch.stack([LABELS[p].bincount(minlength=10) / len(p) for p in parts if len(p)])
    return -(shares * shares.clamp(min=1e-9).log()).sum(1).mean().item()


@pytest.mark.parametrize("alpha", [0.05, 1.0, math.inf])
def test_every_sample_has_one_client(alpha):
    for sizes in (even_sizes(len(LABELS), 200), quantity_skew(len(LABELS), 200, alpha, seed=1)):
        assert sum(sizes) == len(LABELS)
        parts = label_skew(LABELS, sizes, alpha, seed=1)
        assert [len(p) for p in parts] == sizes
        assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(LABELS)))
        again = label_skew(LABELS, sizes, alpha, seed=1)
        assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))


def test_alpha_sets_the_skew():
    sizes = even_sizes(1000, 20)
    skews = [
        entropy(label_skew(LABELS, sizes, alpha, seed=0)) for alpha in (0.01, 0.3, 100, math.inf)
    ]
    assert skews[0] < 0.7 < skews[1] < 1.9 < skews[2]
    # 50 samples of 10 labels have less entropy than log 10, however they are drawn
    assert abs(skews[2] - skews[3]) < 0.05
    largest = [
        max(quantity_skew(1000, 20, alpha, seed=0)) for alpha in (0.05, 1.0, 1000.0, math.inf)
    ]
    assert largest[0] > 300 > largest[1] > 100 > largest[2] > largest[3] == 50
    assert 0 in quantity_skew(1000, 20, 0.05, seed=0)


def test_clients_are_drawn_by_seed_and_round():
    clients = Clients(torch.zeros(50, 1), torch.arange(50), torch.arange(50).split(1))
    rounds = [clients.drawn(7, 0, number) for number in range(400)]
    assert rounds[5] == clients.drawn(7, 0, 5) != clients.drawn(7, 1, 5)
    assert all(len(set(one)) == 7 and one == sorted(one) for one in rounds)
    # 56 times each is expected, with a deviation of 7
    counts = torch.tensor([k for one in rounds for k in one]).bincount(minlength=50)
    assert counts.min() > 25 and counts.max() < 90
    homes = [clients.living_on(rank, 4) for rank in range(4)]
    assert sorted(k for home in homes for k in home) == list(range(50))
    assert clients.living_on(1, 4, [4, 5, 9, 10]) == [5, 9]
    assert clients.label_counts(50).equal(torch.eye(50, dtype=torch.int64))


def test_poisson_sampling_is_of_each_alone():
    """Numbers drawn are binomial: mean n q, variance n q (1 - q); pairs meet with probability q^2."""
    n, q, times = 40, 0.2, 4000
    taken = torch.zeros(times, n)
    for t in range(times):
        taken[t, poisson_sample(n, q, generator(0, "test", t))] = 1
    number = taken.sum(1)
    assert abs(number.mean() - n * q) < 5 * math.sqrt(n * q * (1 - q) / times)
    assert abs(number.var() / (n * q * (1 - q)) - 1) < 5 * math.sqrt(2 / times)
    together = (taken.T @ taken / times)[~torch.eye(n, dtype=torch.bool)]
    assert (together - q * q).abs().max() < 6 * math.sqrt(q * q * (1 - q * q) / times)
    assert number.min() < n * q - 4  # a batch of a fixed size would never be so small


def test_mistakes_get_sentences():
    one = torch.tensor([0])
    for attempt, words in (
        (lambda: quantity_skew(10, 0, 1.0, 0), "at least one client"),
        (lambda: quantity_skew(10, 2, 0.0, 0), "alpha is above 0"),
        (lambda: label_skew(LABELS, [2000], 1.0, 0), "sum of 2000"),
        (lambda: Clients(torch.zeros(2), torch.zeros(2), []), "no clients"),
        (lambda: Clients(torch.zeros(2), torch.zeros(3), [one]), "2 inputs have 3 targets"),
        (lambda: Clients(torch.zeros(2), torch.zeros(2), [one, one]), "belongs to one client"),
        (lambda: Clients(torch.zeros(2), torch.zeros(2), [one + 2]), "there are 2 samples"),
        (
            lambda: Clients(torch.zeros(2), torch.zeros(2), [one]).drawn_by_poisson(0, 0, 0),
            "at most 1",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            attempt()
