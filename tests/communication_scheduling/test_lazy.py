"""Lazy aggregation: the paper's algorithm, written apart with its server; DDP at threshold 0; bytes by the formula."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import launch
from dtcourse.communication_scheduling.lazy import LazyAggregation, lazy_bytes, lazy_hook
from dtcourse.data_parallel import DistributedDataParallel
from tests.turns import taking_turns

STEPS, RATE, FEATURES = 60, 0.4, 7
XI, D = 0.1, 10


def data(rank):
    """Each rank's own problem; later ranks' are steeper, so the others are rarely heard."""
    make = torch.Generator().manual_seed(rank)
    x = torch.randn(20, FEATURES, generator=make, dtype=torch.float64) * 0.5 * (rank + 1) / 2
    return x, x.sum(1, keepdim=True) + 1


def server_and_workers(p, threshold):
    """LAG-WK as in the paper: minimise the sum of L_m = worker m's mean loss / p;
    a server adds what the workers upload."""
    theta = torch.zeros(1, FEATURES, dtype=torch.float64)
    last = [torch.zeros_like(theta) for _ in range(p)]
    total, track, uploads, moves = torch.zeros_like(theta), [], [], []
    for k in range(STEPS):
        count = 0
        for m in range(p):
            x, y = data(m)
            new = 2 * (x @ theta.T - y).T @ x / len(x) / p  # gradient of L_m
            change = new - last[m]
            small = (change**2).sum() <= threshold * sum(moves[-D:]) / (RATE**2 * p**2)
            if k == 0 or not small:
                total, last[m], count = total + change, new, count + 1
        uploads.append(count)
        track.append(total.clone())
        new_theta = theta - RATE * total
        moves.append(float(((new_theta - theta) ** 2).sum()))
        theta = new_theta
    return track, uploads


def trained(wrap, state):
    module = nn.Linear(FEATURES, 1, bias=False).double()
    nn.init.zeros_(module.weight)
    wrapped = wrap(module)
    if state is not None:
        wrapped.register_comm_hook(state, lazy_hook)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=RATE)
    x, y = data(dist.get_rank())
    track = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        (wrapped(x) - y).square().mean().backward()
        track.append(module.weight.grad.clone())
        optimizer.step()
    return track, state and state.num_senders


def all_ways():
    found = {}
    for name, wrap in (("ours", DistributedDataParallel), ("PyTorch's", TorchDDP)):
        found[name, "plain"] = trained(wrap, None)
        found[name, 0.0] = trained(wrap, LazyAggregation(RATE, 0.0))
        found[name, XI] = trained(wrap, LazyAggregation(lambda: RATE, XI, D))
    return found


@pytest.mark.parametrize(
    "p", [1, 3, *taking_turns(2, 4, about="dtcourse/communication_scheduling/")]
)
def test_it_is_the_papers_algorithm_and_ddp_at_threshold_zero(p):
    def close(track, right):
        for got, expected in zip(track, right, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)

    right, uploads = server_and_workers(p, XI)
    for found in launch(all_ways, p):
        for name in ("ours", "PyTorch's"):
            plain, _ = found[name, "plain"]
            close(found[name, 0.0][0], plain)
            assert found[name, 0.0][1] == [p] * STEPS
            track, senders = found[name, XI]
            close(track, right)
            assert senders == uploads
            assert track[-1].norm() < 0.2 * track[0].norm(), "it arrives all the same"
        if p > 1:
            assert sum(uploads) < 0.5 * p * STEPS, "and is seldom heard"


def counted():
    return trained(DistributedDataParallel, LazyAggregation(RATE, XI, D))[1]


@pytest.mark.parametrize("p", [3, *taking_turns(2, about="dtcourse/communication_scheduling/")])
def test_bytes_are_saved_by_the_formula(p):
    run = launch(counted, p, backend="ring", record=True)
    formula = sum(lazy_bytes(FEATURES * 8, senders, p) for senders in run[0])
    sent = run.traffic.bytes_sent(phase="backward")
    assert sent == formula
    assert formula - STEPS * 8 * p * (p - 1) < 0.8 * STEPS * 2 * (p - 1) * FEATURES * 8


def test_what_cannot_be_is_refused():
    for call, words in (
        (lambda: LazyAggregation(0.0), "learning_rate is above 0; got 0.0"),
        (lambda: LazyAggregation(0.1, -1), "threshold is 0 or more; got -1"),
        (lambda: LazyAggregation(0.1, history=0), "history .* got 0"),
        (lambda: lazy_bytes(8, 3, 2), "got num_senders=3"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def other_buckets():
    state = LazyAggregation(0.1)
    state.average((0,), torch.ones(3), torch.ones(3))
    with pytest.raises(ValueError, match="had 3 elements in the last step and has 4"):
        state.average((0,), torch.ones(4), torch.ones(4))


def test_a_model_that_changed_is_refused():
    launch(other_buckets, 1)
