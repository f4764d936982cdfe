"""Deep gradient compression: the paper's algorithm written apart, momentum SGD where all is sent, bytes, memory,
and mistakes."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.compression import DeepGradientState, deep_gradient_hook, warm_up_ratio
from dtcourse.compression.sparse.deep_gradient import local_clip, refuse_momentum
from dtcourse.compression.sparse.selection import at_least, largest, sampled_threshold
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.parameters.buckets import Bucket
from tests.turns import taking_turns

STEPS, RATE = 5, 0.2
CASES = {
    "plain": {"factor_masking": False},
    "masked": {},
    "nesterov": {"nesterov": True},
    "clipped": {"clip_norm": 0.05},
    "warm-up": {"warm_up_epochs": 2},
    "all of it": {"ratio": 1.0, "factor_masking": False},
    "all of it, nesterov": {"ratio": 1.0, "factor_masking": False, "nesterov": True},
    "all of it, masked": {"ratio": 1.0},
}


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)
    ).double()


def batch(step, p):
    make = torch.Generator().manual_seed(step)
    return torch.randn(12, 6, generator=make, dtype=torch.double).chunk(p)


def settings(name):
    return {"ratio": 0.05, "momentum": 0.9, "warm_up_epochs": 0} | CASES[name]


# --- the paper's algorithm, all ranks in one process ---------------------------------------------------------------


def reference(
    p, ratio, momentum, warm_up_epochs, nesterov=False, factor_masking=True, clip_norm=None
):
    """Algorithms 1, 3 and 4 of 1712.01887, line by line: each rank's gradient over N, and the sum of what they send."""
    net = model()
    weights = list(net.parameters())
    u = [[torch.zeros_like(w) for w in weights] for _ in range(p)]
    v = [[torch.zeros_like(w) for w in weights] for _ in range(p)]
    found = []
    for step in range(STEPS):
        share = [0.25, 0.0625, 0.015625, 0.00390625][step] if step < warm_up_epochs else ratio
        total = [torch.zeros_like(w) for w in weights]
        for rank, inputs in enumerate(batch(step, p)):
            gradients = torch.autograd.grad(net(inputs).square().mean(), weights)
            gradients = [g / p for g in gradients]
            if clip_norm is not None:
                norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
                if norm > clip_norm * p**-0.5:
                    gradients = [g * (clip_norm * p**-0.5 / norm) for g in gradients]
            for layer, g in enumerate(gradients):
                if nesterov:
                    u[rank][layer] = momentum * (u[rank][layer] + g)
                    v[rank][layer] = v[rank][layer] + u[rank][layer] + g
                else:
                    u[rank][layer] = momentum * u[rank][layer] + g
                    v[rank][layer] = v[rank][layer] + u[rank][layer]
                k = math.ceil(share * g.numel())
                threshold = v[rank][layer].abs().flatten().sort(descending=True).values[k - 1]
                mask = v[rank][layer].abs() >= threshold
                total[layer] += v[rank][layer] * mask
                v[rank][layer] = v[rank][layer] * ~mask
                if factor_masking:
                    u[rank][layer] = u[rank][layer] * ~mask
        with torch.no_grad():
            for w, each in zip(weights, total, strict=True):
                w -= RATE * each
        found.append([w.detach().clone() for w in weights])
    return found


# --- ranks --------------------------------------------------------------------------------------------------------


def wrapped(kind):
    return kind(model(), bucket_cap_mb=0.0005)


def trained(kind, name):
    rank, p = dist.get_rank(), dist.get_world_size()
    net = wrapped(kind)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    state = DeepGradientState(optimizer, **settings(name))
    net.register_comm_hook(state, deep_gradient_hook)
    found = []
    for step in range(STEPS):
        state.set_epoch(step)
        optimizer.zero_grad()
        net(batch(step, p)[rank]).square().mean().backward()
        optimizer.step()
        found.append([w.detach().clone() for w in net.parameters()])
    return found, state


def momentum_sgd(momentum, nesterov=False):
    rank, p = dist.get_rank(), dist.get_world_size()
    net = wrapped(DistributedDataParallel)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=momentum, nesterov=nesterov)
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        net(batch(step, p)[rank]).square().mean().backward()
        optimizer.step()
        found.append([w.detach().clone() for w in net.parameters()])
    return found


def all_cases():
    found = {}
    for name in CASES:
        for kind in (DistributedDataParallel, TorchDDP):
            with traffic.counting() as counted:
                weights, state = trained(kind, name)
            nbytes = sum(t.nbytes for of in (state.velocity, state.left) for t in of.values())
            found[name, kind.__module__.split(".")[0]] = weights, counted.bytes_sent(), nbytes
    found["momentum"] = momentum_sgd(0.9)
    found["nesterov"] = momentum_sgd(0.9, nesterov=True)
    found["no momentum"] = momentum_sgd(0.0)
    return found


def assert_equal_steps(got, right, what):
    for step, (mine, theirs) in enumerate(zip(got, right, strict=True)):
        for a, b in zip(mine, theirs, strict=True):
            error = (a - b).abs().max()
            assert error <= 1e-12, f"{what}, step {step}: {error}"


@pytest.mark.parametrize("p", [1, 3, *taking_turns(2, 4, about="dtcourse/compression/")])
def test_it_is_the_papers_algorithm_and_momentum_sgd_where_all_is_sent(p):
    run = launch(all_cases, p)
    n = sum(w.numel() for w in model().parameters())
    rights = {name: reference(p, **settings(name)) for name in CASES}
    for found in run:
        for name in CASES:
            for kind in ("dtcourse", "torch"):
                weights, _, nbytes = found[name, kind]
                assert_equal_steps(weights, rights[name], f"{name}, {kind}")
                assert nbytes == 2 * 8 * n, "u and v"
        ours = {name: found[name, "dtcourse"][0] for name in CASES}
        assert_equal_steps(ours["all of it"], found["momentum"], "all of it")
        assert_equal_steps(ours["all of it, nesterov"], found["nesterov"], "nesterov")
        assert_equal_steps(ours["all of it, masked"], found["no momentum"], "masked")
    different = [
        ours["masked"][-1][0],
        ours["plain"][-1][0],
        ours["clipped"][-1][0],
        ours["nesterov"][-1][0],
    ]
    assert all(not torch.equal(a, b) for i, a in enumerate(different) for b in different[:i])


@pytest.mark.parametrize("p", [4, *taking_turns(2, about="dtcourse/compression/")])
def test_bytes_are_the_formulas(p):
    for found in launch(bytes_sent, p, backend="ring"):
        for ratios, dtype_bytes, sent in found:
            sizes = [w.numel() for w in model().parameters()]
            each = sum(math.ceil(r * n) * (dtype_bytes + 4) for r in ratios for n in sizes)
            assert sent == (p - 1) * each


def bytes_sent():
    rank, p = dist.get_rank(), dist.get_world_size()
    found = []
    for dtype, clip in ((torch.float, None), (torch.double, 1.0)):
        net = DistributedDataParallel(
            model().to(dtype), bucket_cap_mb=0.0005, broadcast_buffers=False
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
        state = DeepGradientState(optimizer, ratio=0.02, clip_norm=clip)
        net.register_comm_hook(state, deep_gradient_hook)
        # buckets are built again after it
        net(batch(0, p)[rank].to(dtype)).square().mean().backward()
        net(batch(0, p)[rank].to(dtype)).square().mean().backward()
        ratios = []
        with traffic.counting() as counted:
            for epoch in range(6):
                state.set_epoch(epoch)
                ratios.append(state.ratio)
                net(batch(0, p)[rank].to(dtype)).square().mean().backward()
        found.append((ratios, dtype.itemsize, counted.bytes_sent()))
    return found


def broken():
    """A NaN on one rank in one step, which is skipped."""
    rank, p = dist.get_rank(), dist.get_world_size()
    net = wrapped(DistributedDataParallel)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    state = DeepGradientState(optimizer, ratio=0.05, warm_up_epochs=0)
    net.register_comm_hook(state, deep_gradient_hook)
    seen = []
    for step in range(4):
        optimizer.zero_grad()
        before = {p: v.clone() for p, v in state.left.items()}
        bad = step == 1 and rank == 0
        inputs = batch(step, p)[rank] * (math.nan if bad else 1.0)
        net(inputs).square().mean().backward()
        seen.append(all(w.grad.isfinite().all() for w in net.parameters()))
        if bad:
            assert all(torch.equal(v, before[p]) for p, v in state.left.items())
        if seen[-1]:
            optimizer.step()
    finite = all(t.isfinite().all() for of in (state.velocity, state.left) for t in of.values())
    saved = state.state_dict()
    state.reset()
    assert not state.left and not state.velocity
    state.load_state_dict(saved)
    for name in ("velocity", "left"):
        for a, b in zip(state.state_dict()[name], saved[name], strict=True):
            assert torch.equal(a, b) and a.data_ptr() != b.data_ptr()
    other = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=re.escape("[4, 2]: it belongs to another model")):
        DeepGradientState(torch.optim.SGD(other.parameters(), lr=1)).load_state_dict(saved)
    with pytest.raises(ValueError, match="make a new state for each model"):
        state.send(Bucket(0, list(other.parameters()), is_last=True))
    return seen, finite


def test_a_gradient_that_is_not_finite_is_seen_by_all_and_stays_with_none():
    for seen, finite in launch(broken, 2):
        assert seen == [True, False, True, True]
        assert finite


# --- one process --------------------------------------------------------------------------------------------------


def test_the_warm_up_is_the_papers():
    sparsity = [100 * (1 - warm_up_ratio(epoch)) for epoch in range(6)]
    assert [round(s, 1 if i == 3 else 4) for i, s in enumerate(sparsity)] == [
        75, 93.75, 98.4375, 99.6, 99.9, 99.9,
    ]  # fmt: skip
    assert warm_up_ratio(0, epochs=0) == 0.001
    assert warm_up_ratio(3, 0.1) == 0.1, "never less than after it"
    with pytest.raises(ValueError, match="got epoch -1 of a warm-up of 4"):
        warm_up_ratio(-1)


def test_momentum_twice_is_refused_also_when_a_schedule_brings_it_later():
    weights = [nn.Parameter(torch.zeros(2))]
    words = (
        "has the momentum in it, and SGD has {'momentum': 0.9} "
        "in parameter group 0: each gradient would get it twice"
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        DeepGradientState(torch.optim.SGD(weights, lr=0.1, momentum=0.9))
    with pytest.raises(ValueError, match=re.escape("AdamW has {'betas': (0.9, 0.999)}")):
        refuse_momentum(torch.optim.AdamW(weights))
    optimizer = torch.optim.SGD(weights, lr=0.1)
    state = DeepGradientState(optimizer)
    optimizer.param_groups[0]["momentum"] = 0.5
    with pytest.raises(ValueError, match=re.escape("{'momentum': 0.5}")):
        state.send(Bucket(0, weights, is_last=True))


def test_a_ranks_part_of_the_clipping():
    norms = torch.tensor([3.0, 4.0])
    assert local_clip(norms, 5.0, 1) == 1.0
    assert local_clip(norms, 1.0, 1) == pytest.approx(0.2)
    # of four ranks' 5 / 4 each: half of the threshold is a rank's part
    assert local_clip(norms, 1.0, 4) == pytest.approx(0.5 / (5 / 4))
    assert math.isnan(local_clip(torch.tensor([math.nan]), 1.0, 4))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ratio": 0}, "above 0 and at most 1; got 0"),
        ({"ratio": 1.5}, "above 0 and at most 1; got 1.5"),
        ({"momentum": 1.0}, "momentum is 0 or more and below 1; got 1.0"),
        ({"clip_norm": 0.0}, "clip_norm is above 0, or None for no clipping; got 0.0"),
        ({"warm_up_epochs": -1}, "warm-up of -1"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        DeepGradientState(torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1), **options)


SHAPES = {
    "normal": lambda n: torch.randn(n),
    "heavy tails": lambda n: torch.randn(n) ** 5,
    "zero": torch.zeros,
    "constant": torch.ones,
    "nearly all zero": lambda n: torch.randn(n) * (torch.rand(n) < 1e-4),
    "large where no sample is taken": lambda n: (
        torch.randn(n) * (1 + 99 * (torch.arange(n) % 100 == 7))
    ),
    "large only where it is taken": lambda n: (
        torch.randn(n) * (1 + 99 * (torch.arange(n) % 100 == 0))
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_selection_by_a_sample_gives_what_topk_gives(name):
    torch.manual_seed(0)
    for n in (200_000, 40_000, 100):
        x = SHAPES[name](n)
        for k in (1, n // 1000, n // 100, n // 3):
            places = largest(x, k)
            assert len(places.unique()) == len(places) == k
            right = x.abs().topk(k).values
            assert torch.equal(x[places].abs().sort(descending=True).values, right)


def test_selection_sees_nan_and_a_sampled_threshold_is_about_right():
    torch.manual_seed(0)
    x = torch.randn(200_000)
    found = len(at_least(x, sampled_threshold(x, 0.01))) / len(x)
    assert 0.006 < found < 0.015
    x[123_457] = math.nan
    x[5] = -math.inf
    assert {123_457, 5} <= set(largest(x, 100).tolist())
    assert at_least(x, 1e9).tolist() == [5, 123_457]
    assert at_least(x[:0], 1.0).tolist() == []
