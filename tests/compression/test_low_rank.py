"""PowerSGD: PyTorch's own hook, a reference written apart, the plain mean at full rank, bytes, odd gradients,
bad input."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torchs
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.compression import CompressionState, PowerSGDState, TopK, compression_hook
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.verify import gradients_of
from tests.turns import taking_turns

STEPS = 6


class Model(nn.Module):
    """A convolution, a weight used twice, biases; registered in another order than used, so that buckets change."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(24, 8)
        self.embed = nn.Linear(32, 24, bias=False)
        self.convolution = nn.Conv2d(2, 8, 3)
        self.middle = nn.Linear(24, 24)

    def forward(self, x):
        x = self.convolution(x).tanh().flatten(1)
        x = self.middle(self.embed(x).tanh())
        x = self.embed(nn.functional.linear(x, self.embed.weight.t()))  # tied
        return self.last(x.tanh())


def batch(step, rank, dtype=torch.float32, count=16):
    make = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(count, 2, 4, 4, generator=make, dtype=dtype)


def trained(wrapped, steps=STEPS, dtype=torch.float32, each=None):
    """The gradients of each step."""
    found = []
    for step in range(steps):
        wrapped.zero_grad()
        wrapped(batch(step, dist.get_rank(), dtype)).square().mean().backward()
        found.append({n: g.clone() for n, g in gradients_of(wrapped.module).items()})
        with torch.no_grad():
            for parameter in wrapped.parameters():
                parameter -= 0.1 * parameter.grad
        if each is not None:
            each(wrapped)
    return found


def compare(found, right, limit):
    for step, (one, other) in enumerate(zip(found, right, strict=True)):
        for name, gradient in one.items():
            error = (gradient - other[name]).norm() / other[name].norm().clamp_min(1e-12)
            assert error < limit, f"step {step}, {name}: {error}"


# --- PyTorch's ----------------------------------------------------------------------------------------------------


def torchs_first_factors(state, parameters, seed):
    """The Qs that PyTorch's hook draws for a bucket of these parameters: shape by shape."""
    by_shape = {}
    for parameter in parameters:
        if state.rank_of(parameter.shape):
            by_shape.setdefault(parameter.flatten(1).shape, []).append(parameter)
    torch.manual_seed(np.random.RandomState(seed).randint(1_000_000_000))
    for each in by_shape.values():
        for parameter in each:
            shape = parameter.flatten(1).shape[1], state.rank_of(parameter.shape)
            state.factors[parameter] = torch.randn(shape)


def as_pytorchs():
    for rank in (1, 2, 4):
        for warm_start, feedback in ((True, True), (True, False)):
            theirs = torchs.PowerSGDState(
                None, rank, start_powerSGD_iter=2, min_compression_rate=1.0, warm_start=warm_start,
                use_error_feedback=feedback, random_seed=7,
            )  # fmt: skip
            model = TorchDDP(Model())
            model.register_comm_hook(theirs, torchs.powerSGD_hook)
            right = trained(model)
            for wrap in (TorchDDP, DistributedDataParallel):
                state = PowerSGDState(
                    rank, start_after=2, min_compression_rate=1.0, warm_start=warm_start,
                    error_feedback=feedback,
                )  # fmt: skip

                def hook(state, bucket):
                    if state.steps == 2:
                        torchs_first_factors(state, bucket.parameters(), 7)
                    return compression_hook(state, bucket)

                model = wrap(Model())
                model.register_comm_hook(state, hook)
                compare(trained(model), right, 2e-4)
                assert len(state.left_out) == (4 if feedback else 0), "four matrices"


@pytest.mark.parametrize("p", [4, *taking_turns(2, about="dtcourse/compression/")])
def test_gradients_are_those_of_pytorchs_hook(p):
    launch(as_pytorchs, p, timeout=240.0)


# --- a reference, written apart -----------------------------------------------------------------------------------


def reference(p, rank, first, steps=STEPS, feedback=True):
    """One process, numpy, every matrix alone: Vogels et al., algorithm 1 and 2. first: {name: Q},
    for matrices alone."""
    model = Model().double()
    qs = {name: q.numpy().copy() for name, q in first.items()}
    left = [dict.fromkeys(first, 0.0) for _ in range(p)]
    found = []
    for step in range(steps):
        gradients = []
        for worker in range(p):
            model.zero_grad()
            model(batch(step, worker, torch.float64)).square().mean().backward()
            gradients.append({n: q.grad.numpy().copy() for n, q in model.named_parameters()})
        means = {}
        for name, parameter in model.named_parameters():
            if name not in first:
                means[name] = sum(g[name] for g in gradients) / p
                continue
            rows = parameter.shape[0]
            ms = [g[name].reshape(rows, -1) + left[w][name] for w, g in enumerate(gradients)]
            basis, _, _ = np.linalg.svd(sum(m @ qs[name] for m in ms) / p, full_matrices=False)
            qs[name] = sum(m.T @ basis for m in ms) / p
            mean = basis @ qs[name].T
            if feedback:
                for worker, m in enumerate(ms):
                    left[worker][name] = m - mean
            means[name] = mean.reshape(parameter.shape)
        found.append({name: torch.from_numpy(mean) for name, mean in means.items()})
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= 0.1 * found[-1][name]
    return found


def in_double(rank, feedback, bucket_mb):
    model = DistributedDataParallel(Model().double(), bucket_cap_mb=bucket_mb)
    state = PowerSGDState(rank, min_compression_rate=1.0, error_feedback=feedback)
    make = torch.Generator().manual_seed(1)
    first = {}
    for name, parameter in model.module.named_parameters():
        if state.rank_of(parameter.shape):
            n, r = parameter.flatten(1).shape[1], state.rank_of(parameter.shape)
            first[name] = torch.randn(n, r, generator=make, dtype=torch.float64)
            state.factors[parameter] = first[name]
    model.register_comm_hook(state, compression_hook)
    buckets = set()

    def each(wrapped):
        buckets.add(tuple(tuple(map(id, b.parameters())) for b in wrapped.reducer.buckets))

    return first, trained(model, dtype=torch.float64, each=each), len(buckets)


def plain(wrap, dtype, state=None, steps=STEPS):
    model = wrap(Model().to(dtype), bucket_cap_mb=0.002)
    if state is not None:
        model.register_comm_hook(state, compression_hook)
    return trained(model, steps, dtype)


def all_proofs():
    found = [
        in_double(rank, feedback, 0.002) for rank, feedback in ((1, True), (3, True), (3, False))
    ]
    # Full rank: the plain mean. float64 to its last digits; float32 to float32's.
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 2e-6)):
        right = plain(DistributedDataParallel, dtype)
        for wrap in (DistributedDataParallel, TorchDDP):
            full = plain(wrap, dtype, PowerSGDState(24, min_compression_rate=0))
            compare(full, right, limit if dtype == torch.float64 else 2e-5)
            compare(full[:1], right[:1], limit)
    # The first steps whole, then not.
    later = plain(DistributedDataParallel, torch.float64, PowerSGDState(1, start_after=3))
    right = plain(DistributedDataParallel, torch.float64)
    compare(later[:3], right[:3], 1e-13)
    with pytest.raises(AssertionError, match="step 0"):
        compare(later[3:], right[3:], 1e-3)
    return found


@pytest.mark.parametrize("p", [3, *taking_turns(2, 4, about="dtcourse/compression/")])
def test_gradients_are_those_of_one_process_and_full_rank_is_the_plain_mean(p):
    run = launch(all_proofs, p, timeout=240.0)
    for (rank, feedback), each in zip(
        ((1, True), (3, True), (3, False)), zip(*run, strict=True), strict=True
    ):
        for first, gradients, buckets in each:
            compare(gradients, reference(p, rank, first, feedback=feedback), 1e-9)
            assert buckets == 2, "they are built again after the first step"
            compare(gradients, each[0][1], 1e-300)  # the same on every rank


# --- bytes --------------------------------------------------------------------------------------------------------


def counted():
    model = nn.Sequential(nn.Conv2d(2, 16, 4), nn.Flatten(), nn.Linear(16, 64), nn.Linear(64, 8))
    state = PowerSGDState(2, min_compression_rate=1.0)
    wrapped = DistributedDataParallel(model, broadcast_buffers=False)
    wrapped.register_comm_hook(state, compression_hook)
    sent = []
    for _ in range(3):
        with traffic.counting() as counter:
            wrapped(torch.randn(4, 2, 4, 4)).sum().backward()
        sent.append(counter.bytes_sent(operation="all_reduce"))
        wrapped.zero_grad()
    return sent, state.numbers(p.shape for p in model.parameters())


@pytest.mark.parametrize("p", [2, 4, 8])
def test_bytes_are_the_formulas(p):
    """A ring sends 2 (p - 1) / p of each all-reduce; 4 r (n + m) a matrix, and the vectors whole."""
    matrices, vectors = [(16, 32), (64, 16), (8, 64)], 16 + 64 + 8
    first = vectors + sum(2 * n for n, _ in matrices)
    second = sum(2 * m for _, m in matrices)
    assert first % 8 == second % 8 == 0, "no chunk of the ring is padded"
    for sent, numbers in launch(counted, p, backend="ring", timeout=240.0):
        assert numbers == (first, second)
        assert sent == [2 * (p - 1) * 4 * (first + second) // p] * 3


# --- gradients as none should be ------------------------------------------------------------------------------------


class GivenGradient(nn.Module):
    """The gradients of a 12 x 6 weight and of a bias are what forward gets."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(12, 6)), nn.Parameter(torch.zeros(5))

    def forward(self, weight, bias):
        return (self.weight * weight).sum() + (self.bias * bias).sum()


def odd(rank=2):
    me, p = dist.get_rank(), dist.get_world_size()
    model, state = (
        DistributedDataParallel(GivenGradient()),
        PowerSGDState(rank, min_compression_rate=0),
    )
    model.register_comm_hook(state, compression_hook)

    def mean_of(weight):
        model.zero_grad()
        model(weight, torch.full((5,), float(me))).backward()
        assert model.module.bias.grad.tolist() == [(p - 1) / 2] * 5
        return model.module.weight.grad.clone()

    zero, constant = torch.zeros(12, 6), torch.full((12, 6), -2.0)
    # Zero stays zero, and no zero is kept from which no later gradient would find out.
    assert torch.equal(mean_of(zero), zero)
    assert torch.equal(mean_of(zero), zero)
    torch.testing.assert_close(mean_of(constant), constant)  # of rank one
    torch.testing.assert_close(mean_of(constant), constant)
    x = torch.randn(p, 12, 6, generator=torch.Generator().manual_seed(3))
    mean_of(x[me])
    weight = model.module.weight
    for bad in (math.nan, math.inf, -math.inf):
        kept, left = state.factors[weight].clone(), state.left_out[weight].clone()
        broken = x[me].clone()
        if me == 0:
            broken[3, 2] = bad
        seen = mean_of(broken)
        assert seen.isnan().all(), "on every rank, whoever had it"
        assert torch.equal(state.factors[weight], kept) and torch.equal(
            state.left_out[weight], left
        )
    # What has been left out arrives: over the steps nothing is lost.
    start = state.left_out[weight].clone()
    total = sum(mean_of(x[me]) for _ in range(5))
    lost = start + 5 * x[me] - state.left_out[weight]
    dist.all_reduce(lost)
    torch.testing.assert_close(total, lost / p, rtol=1e-4, atol=1e-4)
    for size in (1e-25, 1e36):  # whose squares have no number in float32
        state.left_out.clear()
        torch.testing.assert_close(mean_of(constant * size), constant * size)
    assert weight in state.left_out and weight in state.factors
    state.reset()
    assert not state.left_out and weight in state.factors
    huge = mean_of(torch.full((12, 6), 3e38))  # its factors have no number in float32
    assert huge.isnan().all() and state.factors[weight].isfinite().all()
    return seen


def kept_by_others():
    """Error feedback of vectors: what is not finite is seen once, and not kept."""
    me = dist.get_rank()
    state = CompressionState(TopK(0.1))
    model = DistributedDataParallel(GivenGradient())
    model.register_comm_hook(state, compression_hook)
    for bad in (1.0, math.nan, math.inf, 1.0):
        weight = torch.ones(12, 6)
        weight[0, 0] = bad if me == 0 else 1.0
        model.zero_grad()
        model(weight, torch.ones(5)).backward()
        assert model.module.weight.grad.isfinite().all() == math.isfinite(bad)
    assert all(left.isfinite().all() for left in state.left_out.values())


def refused():
    """On every rank, with what to do."""
    said = []

    def backward(state, module, *inputs):
        model = DistributedDataParallel(module)
        model.register_comm_hook(state, compression_hook)
        model(*inputs).sum().backward()

    for rank, rate, words in (
        (3, 2.0, "12 x 6 takes rank 1 at most to have more than 2 times"),
        (7, 0.0, "rank 7 is too much for every matrix of the model: one of 12 x 6 takes rank 6"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            backward(
                PowerSGDState(rank, min_compression_rate=rate),
                GivenGradient(),
                torch.ones(12, 6),
                torch.ones(5),
            )
        said.append(words)
    with pytest.raises(ValueError, match="the model has no matrix"):
        backward(PowerSGDState(1), nn.LayerNorm(4), torch.ones(2, 4))
    for state in (PowerSGDState(1, min_compression_rate=1.0), CompressionState(TopK(0.1))):
        module = nn.Linear(6, 6)
        backward(state, module, torch.ones(2, 6))
        backward(state, module, torch.ones(2, 6))  # the same parameters in a new wrapper
        with pytest.raises(
            ValueError,
            match=r"worked for a model of 2 parameters, and one of shape \(6,\) was not among",
        ):
            backward(state, nn.Linear(6, 6), torch.ones(2, 6))
        module.weight.data, module.weight.grad = torch.zeros(3, 6), None
        module.bias.data, module.bias.grad = torch.zeros(3), None
        with pytest.raises(
            ValueError,
            match=r"one of shape \(3,\) had the shape \(6,\)\. .* make a new state for each",
        ):
            backward(state, module, torch.ones(2, 6))
    state = PowerSGDState(1, min_compression_rate=1.0)
    module = nn.Linear(6, 6)
    state.factors[module.weight] = torch.zeros(5, 1)
    with pytest.raises(
        ValueError, match=re.escape("factors holds a Q of shape (5, 1) where (6, 1) is due")
    ):
        backward(state, module, torch.ones(2, 6))
    return said


def test_zero_constant_and_what_is_not_finite_and_bad_input():
    def everything():
        odd(), odd(1), kept_by_others()
        return refused()

    assert [len(said) for said in launch(everything, 2)] == [2, 2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 0}, "rank is a number of columns, 1 or more; got 0"),
        ({"rank": 1.5}, "rank is a number of columns, 1 or more; got 1.5"),
        ({"start_after": -1}, "start_after is a number of steps, 0 or more; got -1"),
        ({"min_compression_rate": -1.0}, "min_compression_rate is 0 or more (0: every matrix); got -1.0"),
        ({"min_compression_rate": math.nan}, "got nan"),
    ],
)  # fmt: skip
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        PowerSGDState(**options)
