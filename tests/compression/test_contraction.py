"""The delta of each method, |C(x) - x|^2 <= (1 - delta) |x|^2: predicted, measured; and what error feedback does."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn

from dtcourse.compression import (
    QSGD,
    AdaptiveThreshold,
    CompressionState,
    CountSketch,
    EliasQSGD,
    Float8,
    HalfPrecision,
    Identity,
    IntegerQuantizer,
    OneBitAdam,
    OneBitSGD,
    RandomK,
    RandomProjection,
    Residuals,
    ScaledSign,
    SketchedTopK,
    TernGrad,
    Threshold,
    TopBlocks,
    TopK,
    average,
)

N = 1024


def alike(n):
    """All numbers are as large as each other."""
    return torch.where(torch.arange(n) % 2 > 0, -1.0, 1.0)


def one(n):
    """One number is not 0."""
    return torch.zeros(n).index_fill_(0, torch.tensor([n // 3]), 2.0)


def one_large(rest):
    """One number is 1, the others are so large: the worst for what is scaled to the largest."""

    def make(n):
        return torch.full((n,), rest).index_fill_(0, torch.tensor([0]), 1.0)

    return make


def by_chance(most, n):
    """Of how many steps all others are where rounding by chance is worst."""
    return 1 / (most + math.sqrt(most**2 + n - 1))


def clipped(n):
    """Many numbers of 2.5 / 4 deviations, and one with the rest of the square."""
    return torch.full((n,), 2.5 / 4).index_fill_(
        0, torch.tensor([0]), math.sqrt(n * (1 - (2.5 / 4) ** 2))
    )


# A method; a vector that is as bad as predicted, None where the prediction is a bound; numbers in the vector.
METHODS = {
    "unchanged": (Identity, alike, N),
    "float16": (HalfPrecision, None, N),
    "bfloat16": (lambda: HalfPrecision(torch.bfloat16), None, N),
    "float8": (Float8, None, N),
    "float8, wide": (lambda: Float8(torch.float8_e5m2), None, N),
    "8 bits": (lambda: IntegerQuantizer(8), one_large(0.4999 / 127), N),
    "4 bits": (lambda: IntegerQuantizer(4, block=128), one_large(0.4999 / 7), 128),
    "2 bits": (lambda: IntegerQuantizer(2), one_large(0.4999), N),
    "2 bits by chance": (lambda: IntegerQuantizer(2, stochastic=True), one_large(by_chance(1, N)), N),
    "4 bits by chance": (lambda: IntegerQuantizer(4, stochastic=True), one_large(by_chance(7, N)), N),
    "8 bits by chance": (lambda: IntegerQuantizer(8, stochastic=True), one_large(by_chance(127, N)), N),
    "QSGD": (QSGD, alike, N),
    "QSGD, 12 levels": (lambda: QSGD(12), None, N),
    "QSGD, 1 level of 2": (lambda: QSGD(1, bucket=2), None, N),
    "QSGD, 127 levels": (lambda: QSGD(127, bucket=N), None, N),
    "Elias": (lambda: EliasQSGD(3, bucket=64), alike, N),
    "TernGrad, unclipped": (lambda: TernGrad(None), one_large(by_chance(1, N)), N),
    "TernGrad, of 4": (TernGrad, one_large(by_chance(1, 4)), 4),
    "TernGrad": (TernGrad, clipped, 1 << 16),
    "sign": (ScaledSign, one, N),
    "1-bit SGD": (lambda: OneBitSGD(64), one, N),
    "top k": (lambda: TopK(0.1), alike, N),
    "blocks": (lambda: TopBlocks(0.1, block=16), alike, N),
    "random k": (lambda: RandomK(0.25, unbiased=False), alike, N),
    "random k, unbiased": (lambda: RandomK(0.25), alike, N),
    "projection": (lambda: RandomProjection(0.1, block=64, unbiased=False), alike, N),
    "projection, unbiased": (lambda: RandomProjection(0.1, block=64), alike, N),
    "projection, nearly whole": (lambda: RandomProjection(0.8, block=64), alike, N),
    "count-sketch": (CountSketch, None, 50_000),
    "count-sketch, a row": (lambda: CountSketch(0.1, rows=1), one, 20_000),
}  # fmt: skip
EXPANDING = ["2 bits by chance", "4 bits by chance", "QSGD", "Elias", "TernGrad, unclipped", "TernGrad",
             "random k, unbiased", "projection, unbiased", "count-sketch", "count-sketch, a row"]  # fmt: skip

# Here what grows makes the largest number larger still, which is exact: these vectors are late by 10 to 40 steps.
SCALED_TO_THE_LARGEST = ["2 bits by chance", "4 bits by chance", "TernGrad, unclipped", "TernGrad"]


def measured(compressor, x, tries):
    """|C(x) - x|^2 / |x|^2, on average, and four standard errors of that."""
    errors = (
        torch.stack(
            [
                (compressor.decompress(compressor.compress(x)) - x).double().square().sum()
                for _ in range(tries)
            ]
        )
        / x.double().square().sum()
    )
    return float(errors.mean()), 4 * float(errors.std() / tries**0.5)


@pytest.mark.parametrize("name", METHODS)
def test_what_is_left_out_is_as_much_as_predicted(name):
    make, worst, n = METHODS[name]
    torch.manual_seed(0)
    most = 1 - make().contraction(n)
    normal = torch.randn(n)
    steep = normal * torch.rand(n).pow(20) * 100
    for x in (normal, steep, alike(n), one(n)):
        found, noise = measured(make(), x, 20)
        assert found <= 1.01 * most + noise + 1e-12
    if worst is not None:
        found, noise = measured(make(), worst(n), 60)
        assert abs(found - most) <= 0.04 * most + noise + 1e-12
        assert noise < 0.6 * most or most == 0.0


@pytest.mark.parametrize("name", METHODS)
def test_error_feedback_stays_bounded_with_a_contraction_and_nothing_bounds_it_without_one(name):
    make, worst, n = METHODS[name]
    n, compressor, norms = min(n, 4096), make(), []
    delta = compressor.contraction(n)
    assert (delta <= 0) == (name in EXPANDING)
    left = torch.zeros(n)
    for step in range(60):
        g = (
            torch.randn(n, generator=torch.Generator().manual_seed(step))
            if worst is None
            else worst(n)
        )
        x = left + g
        left = x - compressor.decompress(compressor.compress(x))
        norms.append(float(left.norm() / g.norm()))
    if delta > 0:
        root = math.sqrt(1 - delta)
        assert max(norms) <= 1.2 * root / max(1 - root, 1e-9) + 1e-9
    elif name not in SCALED_TO_THE_LARGEST:
        assert norms[-1] > 100 * norms[0] or not math.isfinite(norms[-1])


@pytest.mark.parametrize("name", EXPANDING)
def test_what_expands_is_refused_with_error_feedback_and_taken_without(name):
    make = METHODS[name][0]
    CompressionState(make(), error_feedback=False)
    words = rf"error feedback needs a contraction, and {type(make()).__name__} is none.*error_feedback=False"
    for refused in (
        lambda: CompressionState(make()),
        lambda: OneBitAdam([nn.Parameter(torch.zeros(2))], warmup_steps=1, compressor=make()),
    ):
        with pytest.raises(ValueError, match=words):
            refused()


def test_average_with_residuals_refuses_by_the_vectors_own_length():
    with pytest.raises(
        ValueError, match=r"of some vectors of 1000 numbers it leaves out 9 times their square"
    ):
        average(torch.zeros(1000), RandomK(0.1), residuals=Residuals())


@pytest.mark.parametrize(
    ("compressor", "advice"),
    [
        (RandomK(0.1), "or take unbiased=False, which does not scale what is drawn"),
        (RandomProjection(0.1), "or take unbiased=False, which does not scale what is in the directions"),
        (QSGD(7), "or take at least 12 levels for buckets of 512 numbers, or buckets of at most 195 numbers for 7"),
        (QSGD(1, bucket=1 << 17), "or take buckets of at most 3 numbers for 1 levels"),
        (IntegerQuantizer(4, stochastic=True), "or take stochastic=False, or blocks of at most 392 numbers for 4 bits"),
    ],
)  # fmt: skip
def test_the_refusal_says_what_to_do_and_that_is_accepted(compressor, advice):
    with pytest.raises(ValueError, match=re.escape(advice)):
        CompressionState(compressor)


@pytest.mark.parametrize(
    "make",
    [
        lambda: QSGD(12),
        lambda: QSGD(7, bucket=195),
        lambda: QSGD(1, bucket=3),
        lambda: IntegerQuantizer(4, block=392, stochastic=True),
        lambda: RandomK(0.1, unbiased=False),
        lambda: Threshold(1.0),
        AdaptiveThreshold,
        SketchedTopK,
    ],
)
def test_what_is_advised_and_what_has_a_bound_of_its_own_is_taken(make):
    assert CompressionState(make()).error_feedback
