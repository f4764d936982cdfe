"""Sketches and drawn places: bytes, bias, contraction, linearity, what is found, what no gradient should be;
a reference."""

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
    CompressionState,
    CountSketch,
    RandomK,
    RandomProjection,
    Residuals,
    SketchedTopK,
    average,
    compression_hook,
)
from dtcourse.compression.sketches.count_sketch import median
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.verify import compare, gradients_of

METHODS = {
    "count-sketch": (
        lambda: CountSketch(0.1, rows=3),
        lambda n: 4 * 3 * math.ceil(0.1 * n / 3),
    ),
    "projection": (
        lambda: RandomProjection(0.1, block=64),
        lambda n: 4 * math.ceil(n / 64) * 7 if n >= 64 else 4 * math.ceil(0.1 * n),
    ),
    "random k": (lambda: RandomK(0.1), lambda n: 4 * math.ceil(0.1 * n)),
}


def vector(n, seed=0, dtype=torch.float32):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("n", [0, 1, 7, 64, 1001, 70_000])
@pytest.mark.parametrize("name", METHODS)
def test_bytes_are_the_formulas_and_zero_stays_zero(name, n):
    make, formula = METHODS[name]
    compressor, x = make(), vector(n)
    before = x.clone()
    payload = compressor.compress(x)
    assert torch.equal(x, before), "it is not changed"
    assert all(t.is_contiguous() for t in payload.wire)
    assert sum(t.nbytes for t in payload.wire) == compressor.nbytes(n) == formula(n)
    y = compressor.decompress(payload)
    assert y.shape == (n,) and y.dtype == torch.float32
    assert torch.equal(compressor.decompress(compressor.compress(0 * x)), torch.zeros(n))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("n", [100, 70_000])
def test_the_sum_of_sketches_is_the_sketch_of_the_sum(name, n):
    """Of whole numbers, exactly: those of a projection to rounding."""
    x, y = (vector(n, seed).mul_(10).round_() for seed in (1, 2))
    (a,), (b,), (both,) = (METHODS[name][0]().compress(v).wire for v in (x, y, x + y))
    torch.testing.assert_close(a + b, both, rtol=0, atol=1e-3 if name == "projection" else 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CountSketch(0.3, rows=1),
        lambda: CountSketch(0.9, rows=3),
        lambda: RandomProjection(0.2, block=40),
        lambda: RandomProjection(0.2, block=64),  # which does not divide the vector
        lambda: RandomK(0.3),
        lambda: RandomK(0.07),
    ],
)
def test_without_bias_the_mean_of_many_tries_is_the_vector(make):
    x, tries, compressor = vector(200), 4000, make()
    found = torch.stack(
        [compressor.decompress(compressor.compress(x)) for _ in range(tries)]
    ).double()
    error, spread = (found.mean(0) - x).abs(), found.std(0) / tries**0.5
    # Five standard errors: of 200 numbers none is further off, but once in ten thousand seeds.
    assert (error <= 5 * spread + 1e-6).all()
    assert (found.std(0) > 0).all(), "there is chance in it"


def test_a_rows_variance_is_at_most_the_vectors_square_by_its_columns():
    x, tries, sketch = vector(1000), 1000, CountSketch(0.05, rows=1)
    found = torch.stack([sketch.decompress(sketch.compress(x)) for _ in range(tries)])
    mean_variance = (found - x).square().mean()
    assert 0.85 < mean_variance / (x.square().sum() / 50) < 1.02
    five = CountSketch(0.25, rows=5)  # as many columns
    median_of = torch.stack([five.decompress(five.compress(x)) for _ in range(200)])
    assert (median_of - x).square().mean() < 0.5 * mean_variance


def test_a_few_large_numbers_are_found_among_many():
    x = 0.01 * vector(20_000)
    large = torch.randperm(20_000, generator=torch.Generator().manual_seed(1))[:20]
    x[large] = 5.0 + torch.arange(20.0)
    sketch = CountSketch(0.7, rows=7)  # 2,000 columns for 20 large numbers
    y = sketch.decompress(sketch.compress(x))
    assert set(y.topk(20).indices.tolist()) == set(large.tolist())
    assert (y[large] - x[large]).abs().max() < 0.5


def test_the_median_of_rows():
    for rows in (1, 3, 5, 7):
        x = torch.randn(rows, 1000, generator=torch.Generator().manual_seed(rows))
        assert torch.equal(median(list(x)), x.median(0).values)


def test_what_a_projection_leaves_out():
    """|x - C(x)|^2: never more than |x|^2, 1 - ratio of it on average, wherever the vector's numbers are."""
    one = torch.zeros(640)
    one[17] = 3.0
    for x in (vector(640), one, vector(1000)):
        projection = RandomProjection(0.25, block=64, unbiased=False)
        whole, left = x.square().sum(), []
        for _ in range(400):
            y = projection.decompress(projection.compress(x))
            left.append((x - y).square().sum() / whole)
        assert max(left) <= 1.00001
        if len(x) % 64 == 0:
            assert abs(torch.stack(left).mean() - 0.75) < 0.02
    all_of_it = RandomProjection(1.0, block=64, takes=torch.float64)
    x = vector(1000, dtype=torch.float64)
    assert (all_of_it.decompress(all_of_it.compress(x)) - x).abs().max() < 1e-12


def test_places_are_drawn_one_in_each_stretch_evenly_and_alike_on_all_ranks():
    n, k, tries = 103, 10, 3000
    a, b = RandomK(0.09, seed=3), RandomK(0.09, seed=3)  # ceil(9.27) = 10
    x, counts, last = torch.ones(n), torch.zeros(n), None
    together = 0
    bounds = torch.arange(k + 1) * n // k
    for _ in range(tries):
        places = a.compress(x).known
        assert torch.equal(places, b.compress(x).known), "alike"
        assert ((bounds[:-1] <= places) & (places < bounds[1:])).all(), "one in each"
        assert last is None or not torch.equal(places, last), "new ones each time"
        counts[places] += 1
        together += int(places[0] == 0 and places[1] == bounds[1])
        last = places
    chance = 1 / torch.repeat_interleave(bounds.diff(), bounds.diff())
    spread = (tries * chance * (1 - chance)).sqrt()
    assert ((counts - tries * chance).abs() <= 5 * spread).all()
    assert abs(together - tries / 100) < 5 * math.sqrt(tries / 100), "stretches are independent"
    x = vector(50, dtype=torch.float64)
    whole = RandomK(1.0, takes=torch.float64)
    assert torch.equal(whole.decompress(whole.compress(x)), x)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("make", [CountSketch, lambda: RandomProjection(0.1, block=10)])
def test_what_is_not_finite_is_seen_afterwards(make, bad):
    compressor, x = make(), vector(100)
    x[17] = bad
    assert not compressor.decompress(compressor.compress(x)).isfinite().all()


# --- over ranks ---------------------------------------------------------------------------------------------------

N, STEPS = 4000, 5
SPARSE = {
    "all looked at": lambda: SketchedTopK(0.01, CountSketch(0.05, takes=torch.float64), candidates=100),
    "by the sketch": lambda: SketchedTopK(0.01, CountSketch(0.6, rows=5, takes=torch.float64)),
    "estimates": lambda: SketchedTopK(0.01, CountSketch(1.0, rows=5, takes=torch.float64), candidates=None),
}  # fmt: skip


def given(rank, p, step):
    """Large at a few places in the sum of all ranks, where one rank alone has larger ones that the others undo."""
    x = 1e-3 * vector(N, 1000 * step + rank, torch.float64)
    common = torch.randperm(N, generator=torch.Generator().manual_seed(step))
    x[common[:40]] += 1.0 + 0.01 * torch.arange(40, dtype=torch.float64)
    for pair in range(p // 2):
        x[common[40 + 40 * pair : 80 + 40 * pair]] += {2 * pair: 9.0, 2 * pair + 1: -9.0}.get(
            rank, 0.0
        )
    return x


def reference(p):
    """The largest 40 of the mean of what each rank has, which forgets what was sent: nothing of a sketch in it."""
    left = [torch.zeros(N, dtype=torch.float64)] * p
    means = []
    for step in range(STEPS):
        have = [given(rank, p, step) + left[rank] for rank in range(p)]
        mean = sum(have) / p
        chosen = torch.zeros(N, dtype=torch.bool)
        chosen[mean.abs().sort(descending=True).indices[:40]] = True
        means.append(torch.where(chosen, mean, 0.0))
        left = [torch.where(chosen, 0.0, one) for one in have]
    return means


def over_steps():
    rank, p = dist.get_rank(), dist.get_world_size()
    found = {}
    for name, make in SPARSE.items():
        method, residuals = make(), Residuals()
        with traffic.counting() as counted:
            means = [average(given(rank, p, s), method, residuals=residuals) for s in range(STEPS)]
        assert method.nbytes(N) % (8 * p) == 0, "no chunk of the ring is padded"
        assert counted.bytes_sent() == STEPS * 2 * (p - 1) * method.nbytes(N) // p, name
        found[name] = means, residuals.own
        # What is not finite on one rank is seen on all, and not kept by any.
        x = given(rank, p, 0)
        x[3] = math.nan if rank == 0 else 1.0
        kept = residuals.own.clone()
        assert average(x, method, residuals=residuals).isnan().all()
        assert torch.equal(residuals.own, kept)
        assert average(x, method).isnan().all()
    # All of it is the plain mean.
    x = vector(1001, rank, torch.float64)
    right = sum(vector(1001, r, torch.float64) for r in range(p)) / p
    for whole in (
        SketchedTopK(1.0, CountSketch(takes=torch.float64)),
        RandomK(1.0, takes=torch.float64),
        RandomProjection(1.0, block=64, takes=torch.float64),
    ):
        assert (average(x, whole) - right).abs().max() < 1e-12
    for method in (CountSketch(0.1), RandomProjection(0.08, block=100)):
        with traffic.counting() as counted:
            average(vector(4000, rank), method)
        assert counted.bytes_sent() == 2 * (p - 1) * method.nbytes(4000) // p
    return found


@pytest.mark.parametrize("p", [2, 4, 8])
def test_the_largest_of_the_sum_are_found_and_nothing_is_lost(p):
    run = launch(over_steps, p, backend="ring", timeout=240.0)
    right, all_given = reference(p), sum(given(r, p, s) for r in range(p) for s in range(STEPS)) / p
    for found in run:
        for name, (means, _) in found.items():
            for mean, other, first in zip(means, right, run[0][name][0], strict=True):
                assert torch.equal(mean, first), "the same on every rank"
                if name == "estimates":
                    assert (mean - other).norm() < 0.5 * other.norm()
                else:
                    assert (mean - other).abs().max() < 1e-12, name
    for name in SPARSE:
        left = sum(found[name][1] for found in run) / p
        assert (sum(run[0][name][0]) + left - all_given).abs().max() < 1e-11, name


def as_hooks():
    torch.manual_seed(0)
    make = torch.Generator().manual_seed(dist.get_rank())
    x = [torch.randn(4, 8, generator=make) for _ in range(4)]

    def trained(wrap, state):
        torch.manual_seed(0)
        model = wrap(
            nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), bucket_cap_mb=1e-4
        )
        if state is not None:
            model.register_comm_hook(state, compression_hook)
        for each in x:
            model.zero_grad()
            model(each).square().mean().backward()
        return gradients_of(model.module)

    for wrap in (DistributedDataParallel, TorchDDP):
        compare(
            trained(wrap, CompressionState(SketchedTopK(1.0))), trained(wrap, None), 1e-5, "whole"
        )
        for state in (
            CompressionState(SketchedTopK(0.2, CountSketch(0.5))),
            CompressionState(RandomProjection(0.2, unbiased=False)),
            CompressionState(CountSketch(0.2), error_feedback=False),
            CompressionState(RandomK(0.2, unbiased=False)),
        ):
            mine = torch.cat([g.flatten() for g in trained(wrap, state).values()])
            everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, mine)
            assert all(torch.equal(each, everyone[0]) for each in everyone)
            assert mine.isfinite().all() and mine.any()


def test_as_hooks_of_ours_and_of_pytorchs():
    launch(as_hooks, 3, timeout=240.0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CountSketch(0), "above 0 and at most 1; got 0"),
        (lambda: CountSketch(rows=4), "rows is an odd number, so that there is a median; got 4"),
        (lambda: CountSketch(rows=0), "rows is an odd number, so that there is a median; got 0"),
        (lambda: SketchedTopK(1.1), "above 0 and at most 1; got 1.1"),
        (lambda: SketchedTopK(candidates=0.5), "1 or more, or None; got 0.5"),
        (lambda: RandomProjection(math.nan), "above 0 and at most 1; got nan"),
        (lambda: RandomProjection(block=0), "block is a number of numbers, 1 or more; got 0"),
    ],
)
def test_bad_options(make, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make()
