"""What is above a threshold, and whole blocks or rows: which numbers travel, bytes, means over ranks,
shares that are met."""

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
from dtcourse.compression import (
    AdaptiveThreshold,
    CompressionState,
    OneBitAdam,
    Residuals,
    SampledThreshold,
    SignThreshold,
    Threshold,
    TopBlocks,
    TopRows,
    average,
    compression_hook,
)
from dtcourse.compression.compressor import Payload, from_bytes, to_bytes
from dtcourse.compression.sparse.selection import at_least, sampled_threshold
from dtcourse.data_parallel import DistributedDataParallel
from tests.turns import taking_turns

METHODS = {
    "fixed": lambda: Threshold(1.5),
    "signs": lambda: SignThreshold(1.5),
    "sampled": lambda: SampledThreshold(0.05, sample=0.2),
    "adaptive": lambda: AdaptiveThreshold(0.05, sample=0.2),
    "blocks": lambda: TopBlocks(0.1, block=16),
}


def vector(n, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def through(compressor, x):
    return compressor.decompress(compressor.compress(x))


@pytest.mark.parametrize("n", [0, 1, 7, 1001, 70_000])
@pytest.mark.parametrize("name", METHODS)
def test_a_message_says_the_same_as_its_payload_and_its_bytes_follow_from_what_it_holds(name, n):
    compressor, x = METHODS[name](), vector(n)
    before = x.clone()
    payload = compressor.compress(x)
    assert torch.equal(x, before), "it is not changed"
    message = to_bytes(payload)
    k = len(payload.wire[1])
    if name == "blocks":
        assert k == math.ceil(0.1 * math.ceil(n / 16))
        assert len(message) == compressor.nbytes(n) == 4 * k * 16 + 4 * k
    else:
        assert len(message) == (4 + 4 * k if name == "signs" else 8 * k) <= compressor.nbytes(n)
    y = compressor.decompress(payload)
    assert y.shape == (n,) and y.dtype == torch.float32
    assert torch.equal(compressor.decompress(from_bytes(message, compressor, n)), y)


def test_what_is_above_the_threshold_travels_and_nothing_else():
    x = vector(1000)
    above = x.abs() >= 1.5
    assert 100 < above.sum() < 200
    assert torch.equal(through(Threshold(1.5), x), torch.where(above, x, 0.0))
    assert torch.equal(through(SignThreshold(1.5), x), torch.where(above, 1.5 * x.sign(), 0.0))


def test_blocks_of_largest_norm_travel_whole():
    x = vector(1000)
    y = through(TopBlocks(0.1, block=30), x)
    norms = [float(part.norm()) for part in x.split(30)]
    right = sorted(range(34), key=lambda i: -norms[i])[:4]
    for i, (part, got) in enumerate(zip(x.split(30), y.split(30), strict=True)):
        assert torch.equal(got, part if i in right else torch.zeros_like(part))
    assert (x - y).square().sum() <= (1 - 4 / 34) * x.square().sum(), "contractive"
    # a matrix' rows: block = its columns
    embedding = torch.zeros(50, 8)
    embedding[[3, 40]] = vector(16).view(2, 8)
    assert torch.equal(
        through(TopBlocks(0.04, block=8), embedding.flatten()).view(50, 8), embedding
    )


class Nudged(AdaptiveThreshold):
    """What AdaptiveThreshold is not: the last threshold,
    a bit higher after too many numbers and a bit lower after too few."""

    def compress(self, x):
        threshold = self.thresholds.setdefault(len(x), sampled_threshold(x, self.ratio))
        places = at_least(x, threshold)
        share = max(len(places) / len(x), self.ratio / 16)
        self.thresholds[len(x)] = threshold * (share / self.ratio) ** 0.25
        return Payload((x[places], places.int()), len(x))


def test_the_share_is_met_where_gradients_shrink_and_the_fixed_one_falls_silent():
    """Numbers shrink by a factor of 30 in 80 steps, with error feedback;
    a vector of another size has its own threshold."""
    n = 20_000
    methods = {"fixed": Threshold(2.6), "sampled": SampledThreshold(0.01),
               "adaptive": AdaptiveThreshold(0.01), "nudged": Nudged(0.01)}  # fmt: skip
    found = {name: [] for name in methods}
    left, different = dict.fromkeys(methods, torch.zeros(n)), set()
    for step in range(80):
        for name, method in methods.items():
            x = 0.958**step * vector(n, step) + left[name]
            payload = method.compress(x)
            left[name] = x - method.decompress(payload)
            found[name].append(len(payload.wire[1]) / n)
        methods["adaptive"].compress(1000 * vector(300, step))
        different.add(float(methods["adaptive"].thresholds[n]))
    assert 0.007 < found["fixed"][0] < 0.013
    assert sum(found["fixed"][-20:]) / 20 < 0.006
    for name in ("sampled", "adaptive"):
        assert all(0.004 < share < 0.025 for share in found[name]), name
    assert methods["adaptive"].thresholds[300] > 100 * methods["adaptive"].thresholds[n]
    assert len(different) < 70, "kept for some steps at least"
    assert max(found["nudged"][-20:]) > 0.05 and min(found["nudged"][-20:]) < 0.002, "to and fro"


@pytest.mark.parametrize("name", METHODS)
def test_zero_stays_zero_and_a_constant_a_constant(name):
    for n in (100, 50_000):
        compressor = METHODS[name]()
        payload = compressor.compress(torch.zeros(n))
        assert name == "blocks" or not len(payload.wire[1]), "nothing has to travel"
        assert torch.equal(compressor.decompress(payload), torch.zeros(n))
        y = through(compressor, torch.full((n,), -2.0))
        kept = y[y != 0]
        assert len(kept) and (kept == (-1.5 if name == "signs" else -2.0)).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", METHODS)
def test_what_is_not_finite_is_seen_and_the_next_vector_is_not_touched_by_it(name, bad):
    compressor, x = METHODS[name](), vector(1000)
    x[17] = bad
    assert not through(compressor, x).isfinite().all()
    y = through(compressor, vector(1000))
    assert y.isfinite().all() and 0 < (y != 0).sum() < 300


# --- over ranks ---------------------------------------------------------------------------------------------------

N, STEPS = 1001, 3


def given(p, step):
    """Rank r's numbers are r + 1 times as large: the ranks have different numbers above a threshold;
    the last has none."""
    x = vector(p * N, step).view(p, N) * torch.arange(1, p + 1)[:, None]
    x[-1] *= 0.01
    return x


def averaged():
    rank, p = dist.get_rank(), dist.get_world_size()
    found = {}
    for name, make in METHODS.items():
        compressor, residuals, means, lengths = make(), Residuals(), [], []
        with traffic.counting() as counted:
            for step in range(STEPS):
                means.append(average(given(p, step)[rank], compressor, residuals=residuals))
        found[name] = means, counted.bytes_sent(), lengths
    silent = average(torch.zeros(N), Threshold(1.0))
    return found, silent, embedded()


def embedded():
    """Rows of an embedding in a bucket with a matrix and biases: all that have a gradient travel,
    in our DDP and PyTorch's."""
    rank, p = dist.get_rank(), dist.get_world_size()
    words = torch.tensor([1, 5, 5, 9]) + 10 * rank
    found = []
    for wrap in (DistributedDataParallel, TorchDDP):
        for state in (None, TopRows(0.1), CompressionState(AdaptiveThreshold(0.1))):
            torch.manual_seed(0)
            net = wrap(nn.Sequential(nn.Embedding(60, 6), nn.Linear(6, 20)))
            if state is not None:
                net.register_comm_hook(state, compression_hook)
            for _ in range(2):
                net.zero_grad()
                net(words).square().sum().backward()
            found.append([w.grad.clone() for w in net.parameters()])
    for plain, rows, adaptive in (found[:3], found[3:]):
        torch.testing.assert_close(rows[0], plain[0])  # 3 rows a rank of 6 that may travel
        kept = rows[1].abs().sum(1) > 0
        assert 2 <= kept.sum() <= 2 * p, "two rows of 20 from each rank"
        assert all(g.isfinite().all() for g in adaptive)
    for a, b in zip(found[1], found[4], strict=True):
        torch.testing.assert_close(a, b)
    return torch.cat([g.flatten() for each in found for g in each])


@pytest.mark.parametrize("p", [3, *taking_turns(2, 4, about="dtcourse/compression/")])
def test_means_are_those_of_one_process_and_bytes_the_formulas(p):
    run = launch(averaged, p, backend="ring")
    for name, make in METHODS.items():
        compressors, left, nbytes = [make() for _ in range(p)], torch.zeros(p, N), 0
        for step in range(STEPS):
            x = given(p, step) + left
            payloads = [c.compress(one) for c, one in zip(compressors, x, strict=True)]
            lengths = [sum(t.nbytes for t in payload.wire) for payload in payloads]
            assert name not in ("fixed", "signs") or len(set(lengths)) > 1, "they differ"
            nbytes += (p - 1) * (max(lengths) + (0 if name == "blocks" else 8))
            sent = torch.stack(
                [c.decompress(one) for c, one in zip(compressors, payloads, strict=True)]
            )
            left = x - sent
            for found, _, _ in run:
                torch.testing.assert_close(found[name][0][step], sent.mean(0), rtol=1e-5, atol=1e-6)
                assert torch.equal(found[name][0][step], run[0][0][name][0][step])
        for found, silent, gradients in run:
            assert found[name][1] == nbytes, name
            assert torch.equal(silent, torch.zeros(N)), "no rank has anything to send"
            assert torch.equal(gradients, run[0][2]), "the same on every rank"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Threshold(0), "threshold is a magnitude above 0; got 0"),
        (lambda: SignThreshold(-1.0), "threshold is a magnitude above 0; got -1.0"),
        (lambda: SampledThreshold(0), "above 0 and at most 1; got 0"),
        (lambda: AdaptiveThreshold(1.5), "above 0 and at most 1; got 1.5"),
        (lambda: AdaptiveThreshold(tolerance=1), "tolerance is a factor above 1; got 1"),
        (lambda: TopBlocks(0.1, block=0), "block is a number of numbers, 1 or more; got 0"),
        (lambda: TopRows(2), "above 0 and at most 1; got 2"),
    ],
)
def test_bad_options(make, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


def two_of_one_size():
    """Two buckets as large as each other, and an optimizer's two weights, with gradients a thousand times as large."""
    found = []
    for state in (CompressionState(AdaptiveThreshold(0.1)), None):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(40, 40, bias=False), nn.Linear(40, 40, bias=False))
        optimizer = OneBitAdam(
            model.parameters(), warmup_steps=1, compressor=AdaptiveThreshold(0.1)
        )
        model[1].weight.register_hook(lambda g: g * 1e-3)
        wrapped = model if state is None else DistributedDataParallel(model, bucket_cap_mb=0.006)
        if state is not None:
            wrapped.register_comm_hook(state, compression_hook)
        for step in range(6):
            make = torch.Generator().manual_seed(step + 10 * dist.get_rank())
            optimizer.zero_grad()
            hidden = wrapped(torch.randn(16, 40, generator=make))
            hidden.square().mean().backward()
            if state is None:
                optimizer.step()
        compressor = optimizer.compressor if state is None else state.compressor
        found.append(
            (len(compressor.thresholds), sorted(float(t) for t in compressor.thresholds.values()))
        )
    return found


def test_two_vectors_of_one_size_have_a_threshold_each():
    for hook, optimizer in launch(two_of_one_size, 2):
        assert hook[0] == 2 and hook[1][1] > 100 * hook[1][0]
        assert optimizer[0] == 2 and optimizer[1][1] > 100 * optimizer[1][0]
