"""Graphs mix as fast as their spectral gap says, in one process and on ranks; what is no mixing matrix is refused."""

from __future__ import annotations

import copy
import math
import pickle
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import emulation, launch
from dtcourse.asynchronous import GossipSGD, consensus_distance, mixing
from dtcourse.collectives import traffic
from dtcourse.emulation import EmulatedNetwork


def cosine(k, p):
    return math.cos(2 * math.pi * k / p)


# The eigenvalues are known: circulant matrices, and products of rings.
GAPS = {
    "ring of 16": (mixing.ring(16), 1 - (1 + 2 * cosine(1, 16)) / 3),
    "ring of 2": (mixing.ring(2), 1.0),
    "torus 4 x 4": (mixing.torus(4, 4), 0.4),
    "torus 3 x 5": (mixing.torus(3, 5), 1 - (1 + 2 + 2 * cosine(1, 5)) / 5),
    "complete": (mixing.complete(7), 1.0),
    # Ying et al. 2021, theorem 1: 2 / (1 + ceil(log2 p)) for even p.
    "exponential of 16": (mixing.exponential(16), 2 / 5),
    "exponential of 6": (mixing.exponential(6), 2 / 4),
    "one peer, 8": (mixing.one_peer_exponential(8), 1.0),
    "alone": (mixing.ring(1), 1.0),
}


@pytest.mark.parametrize("name", GAPS)
def test_the_gap_is_the_eigenvalues(name):
    weights, gap = GAPS[name]
    size = len(mixing.rounds(weights)[0])
    mixing.check_mixing(weights, size)
    assert mixing.spectral_gap(weights) == pytest.approx(gap, abs=1e-12)


@pytest.mark.parametrize(
    "weights",
    [
        mixing.ring(9),
        mixing.torus(2, 5),
        mixing.exponential(10),
        mixing.metropolis_hastings(5, [(0, 1), (1, 2), (1, 3), (3, 4)]),
    ],
)
def test_distance_falls_by_the_gap_and_the_mean_stays(weights):
    p, gap = len(weights), mixing.spectral_gap(weights)
    X = torch.randn(p, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = X.mean(0)
    first = (X - mean).norm()
    for t in range(1, 30):
        X = weights @ X
        torch.testing.assert_close(X.mean(0), mean)
        assert (X - mean).norm() <= first * (1 - gap) ** t * (1 + 1e-9)
    # It is no looser bound: the slowest vector keeps to it.
    left, _, _ = torch.linalg.svd(weights.T - 1 / p)
    slowest = left[:, 0]
    assert (weights @ slowest).norm() == pytest.approx(1 - gap)


def test_one_peer_exponential_is_exact_after_log2_steps():
    X = torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    Y = X
    for weights in mixing.one_peer_exponential(8):
        assert ((weights != 0).sum(1) == 2).all(), "itself and one peer"
        Y = weights @ Y
    torch.testing.assert_close(Y, X.mean(0).expand_as(X))


# --- on ranks ----------------------------------------------------------------------------------------------------


def mixed(graph, start):
    """Distances from the mean when nobody learns; `start`: (p, n), or None for random numbers."""
    rank = dist.get_rank()
    model = nn.Linear(10, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.randn(10) * rank if start is None else start[rank])
    optimizer = GossipSGD(
        model, torch.optim.SGD(model.parameters(), lr=0.0), graph, init_sync=False
    )
    found = [consensus_distance(model)]
    for _ in range(4):
        model(torch.ones(1, 10, dtype=torch.float64)).sum().backward()
        optimizer.step()
        found.append(consensus_distance(model))
    return found, model.weight.detach().flatten().clone()


def several():
    slow = torch.tensor([1.0, 0.0, -1.0, 0.0], dtype=torch.float64)[:, None].expand(4, 10)
    return [
        mixed(mixing.ring(4), None),
        mixed(mixing.ring(4), slow),
        mixed(mixing.one_peer_exponential(4), None),
        mixed(mixing.complete(4), None),
    ]


def test_on_ranks_too():
    run = launch(several, 4, timeout=240)
    any_start, slow, one_peer, complete = ([found[i][0] for found in run] for i in range(4))
    assert all(each == any_start[0] for each in any_start), "measured alike on every rank"
    for t, distance in enumerate(any_start[0]):
        assert distance <= any_start[0][0] * (1 / 3) ** t * (1 + 1e-12)
    # an eigenvector of 1/3; |x|^2 is 10 on two of four ranks
    for t, distance in enumerate(slow[0]):
        assert distance == pytest.approx(math.sqrt(5.0) / 3**t, rel=1e-12)
    assert one_peer[0][1] > 1e-3 * one_peer[0][0]
    assert one_peer[0][2] < 1e-12
    assert complete[0][1] < 1e-12


class Slow(nn.Linear):
    """A second of computing in each forward."""

    def forward(self, x):
        emulation.sleep(1.0)
        return super().forward(x)


def steps_of(overlap):
    model = Slow(999, 1)  # 4,000 bytes
    optimizer = GossipSGD(
        model, torch.optim.SGD(model.parameters(), lr=0.1), mixing.ring(4), overlap=overlap, init_sync=False
    )  # fmt: skip
    before = emulation.now()
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 999)).sum().backward()
        optimizer.step()
    return emulation.now() - before


def test_parameters_travel_while_gradients_are_computed():
    link = EmulatedNetwork(latency=0.1, bandwidth=20_000)  # 0.2 s a message, two of them in a step
    assert [*launch(steps_of, 4, True, network=link, clock="virtual")] == pytest.approx(
        [3 * 1.0] * 4
    )
    assert [*launch(steps_of, 4, False, network=link, clock="virtual")] == pytest.approx(
        [3 * (1.0 + 2 * 0.2 + 0.1)] * 4
    )


def copies():
    """A model that is copied, pickled or returned takes no part in what the first one does."""
    model = nn.Linear(3, 1)
    optimizer = GossipSGD(model, torch.optim.SGD(model.parameters(), lr=0.1), mixing.ring(2))
    for _ in range(2):
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            with traffic.counting() as sent:
                other(torch.ones(1, 3))
            assert sent.messages_sent() == 0
        with torch.no_grad():  # nor does a forward without gradients
            model(torch.ones(1, 3))
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    return model


def test_a_model_can_be_copied_and_returned():
    first, second = launch(copies, 2)
    first(torch.ones(1, 3))
    assert torch.equal(first.weight, second.weight)


# --- what is no mixing matrix ------------------------------------------------------------------------------------


def swapped(size):
    return torch.eye(size, dtype=torch.float64).roll(1, dims=1)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (mixing.ring(3), "a mixing matrix for 4 ranks is 4 x 4; got 3 x 3"),
        (torch.ones(4, 4) / 3, "row 0 sums to 1.33333, not to 1"),
        (torch.tensor([[0.5, 0.5, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]), "column 0 sums to 0.5, not to 1"),
        (torch.eye(4) * 2 - torch.ones(4, 4) / 4, "weights are 0 or more; W[0, 1] is -0.25"),
        (torch.full((4, 4), float("nan")), "weights are 0 or more; W[0, 0] is nan"),
        (mixing.metropolis_hastings(4, [(0, 1), (2, 3)]), "ever comes to ranks 2, 3. It reaches ranks 0, 1"),
        (mixing.metropolis_hastings(4, [(0, 1), (1, 2)]), "nothing from rank 0 ever comes to rank 3."),
        (swapped(4), "travel round and never mix"),
        ([], "there is no mixing matrix"),
    ],
)  # fmt: skip
def test_what_is_no_mixing_matrix(weights, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        mixing.check_mixing(weights, 4)


def test_a_list_need_be_connected_only_together():
    edges = ([(0, 1), (2, 3)], [(1, 2), (3, 0)])
    pairs = [mixing.metropolis_hastings(4, pair) for pair in edges]
    mixing.check_mixing(pairs, 4)
    with pytest.raises(ValueError, match="not connected"):
        mixing.check_mixing(pairs[:1] * 2, 4)


@pytest.mark.parametrize("edge", [(0, 4), (-1, 2), (2, 2)])
def test_what_is_no_edge(edge):
    with pytest.raises(ValueError, match=re.escape(f"different ranks of 0 to 3; got {edge}")):
        mixing.metropolis_hastings(4, [edge])


def test_no_rank_at_all():
    for graph in (mixing.ring, mixing.complete, mixing.exponential, mixing.one_peer_exponential):
        with pytest.raises(ValueError, match="at least one rank; got 0"):
            graph(0)
