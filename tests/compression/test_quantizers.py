"""QSGD, TernGrad, 1-bit SGD and the majority's vote: bytes, bias, variance, nearest values, means over ranks,
and sanity."""

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
    QSGD,
    IntegerQuantizer,
    MajorityVote,
    OneBitSGD,
    Residuals,
    TernGrad,
    TernGradState,
    average,
    average_ternary,
    compression_hook,
    majority_vote,
)
from dtcourse.compression.bits import in_rows, pack_bits, unpack_bits
from dtcourse.compression.compressor import from_bytes, to_bytes
from dtcourse.compression.quantized.stochastic_rounding import StochasticRounding
from dtcourse.compression.quantized.ternary import pack_ternary, unpack_ternary
from dtcourse.data_parallel import DistributedDataParallel
from tests.turns import taking_turns

METHODS = {
    "QSGD, 1 level": (lambda: QSGD(1, bucket=64), lambda n: up(n, 4) + 4 * up(n, 64)),
    "QSGD, 7 levels": (QSGD, lambda n: up(n, 2) + 4 * up(n, 512)),
    "QSGD, 127 levels": (lambda: QSGD(127, bucket=100), lambda n: n + 4 * up(n, 100)),
    "TernGrad": (TernGrad, lambda n: up(n, 5) + 4),
    "TernGrad, not clipped": (lambda: TernGrad(None), lambda n: up(n, 5) + 4),
    "1-bit SGD": (lambda: OneBitSGD(60), lambda n: up(n, 8) + 8 * up(n, 60)),
}


def up(n, by):
    return math.ceil(n / by)


def vector(n, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def through(compressor, x):
    return compressor.decompress(compressor.compress(x))


@pytest.mark.parametrize("n", [0, 1, 7, 64, 1001, 90_000])
@pytest.mark.parametrize("name", METHODS)
def test_bytes_are_the_formulas_and_a_message_says_the_same_as_its_payload(name, n):
    make, formula = METHODS[name]
    compressor, x = make(), vector(n)
    before = x.clone()
    payload = compressor.compress(x)
    assert torch.equal(x, before), "it is not changed"
    message = to_bytes(payload)
    assert len(message) == compressor.nbytes(n) == formula(n)
    y = compressor.decompress(payload)
    assert y.shape == (n,) and y.dtype == torch.float32
    assert torch.equal(compressor.decompress(from_bytes(message, compressor, n)), y)


@pytest.mark.parametrize("n", [0, 1, 8, 1001])
def test_bits_and_base_3_survive_being_packed(n):
    flags = torch.rand(n) < 0.5
    packed = pack_bits(flags)
    assert torch.equal(unpack_bits(packed, n) > 0, flags)
    by_hand = [sum(int(f) << i for i, f in enumerate(flags[s : s + 8])) for s in range(0, n, 8)]
    assert packed.tolist() == by_hand
    codes = torch.randint(-1, 2, (n,)).float()
    packed = pack_ternary(codes)
    assert torch.equal(unpack_ternary(packed, n), codes) and len(packed) == up(n, 5)
    rows = torch.cat([r.flatten() for _, r in in_rows(codes, 9)]) if n else codes
    assert torch.equal(rows, codes)


def test_every_byte_of_eight_bits_is_packed():
    flags = (torch.arange(256)[:, None] >> torch.arange(8)) & 1 > 0
    assert pack_bits(flags.flatten()).tolist() == list(range(256))


# --- what is left of a vector ------------------------------------------------------------------------------------


def allowed(x, step, tries):
    """How far a mean of tries may be from x where numbers are rounded to whole steps: five standard errors,
    and six rare events."""
    return 5 * (x.abs() * step / tries).sqrt() + 6 * step / tries


@pytest.mark.parametrize(
    ("make", "step"),
    [
        (lambda: QSGD(1, bucket=50), lambda x: x.view(-1, 50).norm(dim=1).max()),
        (lambda: QSGD(4, bucket=100), lambda x: x.view(-1, 100).norm(dim=1).max() / 4),
        (QSGD, lambda x: x.norm() / 7),
        (lambda: TernGrad(None), lambda x: x.abs().max()),
    ],
)
def test_without_bias_the_mean_of_many_tries_is_the_vector(make, step):
    torch.manual_seed(0)
    x, tries, compressor = vector(200), 2000, make()
    found = torch.stack([through(compressor, x) for _ in range(tries)])
    assert ((found.mean(0) - x).abs() <= allowed(x, step(x), tries)).all()
    assert (found.std(0) > 0).sum() > 150, "there is chance in it"


@pytest.mark.parametrize(("levels", "bucket"), [(1, 64), (4, 512), (127, 512)])
def test_qsgds_variance_stays_below_the_papers_bound(levels, bucket):
    torch.manual_seed(0)
    x, tries, compressor = vector(bucket), 200, QSGD(levels, bucket=bucket)
    error = sum((through(compressor, x) - x).square().sum() for _ in range(tries)) / tries
    bound = min(bucket / levels**2, bucket**0.5 / levels) * x.square().sum()
    assert 0.1 * bound < error <= bound
    # with the largest number in the norm's place, as the authors ran it, it is smaller
    bits = {1: 2, 4: 4, 127: 8}[levels]
    by_largest = IntegerQuantizer(bits, block=bucket, stochastic=True)
    assert sum((through(by_largest, x) - x).square().sum() for _ in range(20)) / 20 < error


def test_qsgd_has_the_levels_of_its_buckets_norm():
    x = vector(100)
    y = through(QSGD(5, bucket=25), x).view(4, 25)
    levels = y / x.view(4, 25).norm(dim=1, keepdim=True) * 5
    torch.testing.assert_close(levels, levels.round(), atol=1e-4, rtol=0)
    assert ((levels - 5 * x.view(4, 25) / x.view(4, 25).norm(dim=1, keepdim=True)).abs() < 1).all()
    assert len(levels.round().unique()) > 3


def test_terngrad_clips_at_two_and_a_half_deviations_and_is_quieter_for_it():
    torch.manual_seed(0)
    x = vector(10_000)
    x[0] = 20.0
    scales = {clip: TernGrad(clip).compress(x).wire[0].item() for clip in (None, 2.5)}
    assert scales[None] == 20.0
    assert abs(scales[2.5] - 2.5 * x.square().mean().sqrt()) < 1e-5
    assert through(TernGrad(), x)[0] == pytest.approx(scales[2.5]), "the large one is clipped"
    errors = [(through(TernGrad(clip), x) - x)[1:].square().sum() for clip in (None, 2.5)]
    assert errors[1] < errors[0] / 5
    assert set(through(TernGrad(), x).div(scales[2.5]).unique().round().tolist()) == {-1, 0, 1}


def test_one_bit_sgds_two_values_are_means_and_no_others_are_nearer():
    x, block = vector(130), 60
    y = through(OneBitSGD(block), x)
    for part, got in zip(x.split(block), y.split(block), strict=True):
        torch.testing.assert_close(got[part >= 0], part[part >= 0].mean().expand_as(got[part >= 0]))
        torch.testing.assert_close(got[part < 0], part[part < 0].mean().expand_as(got[part < 0]))
        shifted = torch.where(part >= 0, got + 0.01, got - 0.01)
        assert (part - got).square().sum() < (part - shifted).square().sum()
    assert (x - y).square().sum() < 0.5 * x.square().sum(), "contractive"
    assert through(OneBitSGD(2), torch.tensor([3.0, 5.0])).tolist() == [4.0, 4.0], "none below"


@pytest.mark.parametrize("name", METHODS)
def test_zero_stays_zero_and_a_constant_a_constant(name):
    compressor = METHODS[name][0]()
    assert torch.equal(through(compressor, torch.zeros(100)), torch.zeros(100))
    y = through(compressor, torch.full((100,), -2.0))
    kept = y[y != 0]
    assert len(kept) and kept.max() < 0
    if "QSGD" not in name:
        assert torch.equal(y, torch.full((100,), -2.0))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", METHODS)
def test_what_is_not_finite_is_seen_afterwards(name, bad):
    x = vector(100)
    x[17] = bad
    assert not through(METHODS[name][0](), x).isfinite().all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: QSGD(0), "levels is 1 to 127, so that a code fits eight bits; got 0"),
        (lambda: QSGD(128), "got 128"),
        (lambda: QSGD(bucket=0), "bucket is a number of numbers, 1 or more; got 0"),
        (lambda: OneBitSGD(0), "block is a number of numbers, 1 or more; got 0"),
        (lambda: TernGrad(0), "clip is above 0, in standard deviations, or None; got 0"),
        (lambda: TernGradState(math.nan), "or None; got nan"),
    ],
)
def test_bad_options(make, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


# --- over ranks --------------------------------------------------------------------------------------------------

N, LAYERS = 1003, [100, 3, *[90] * 10]  # twelve, so that a ring cuts their scales evenly


def whole(p, seed=0):
    """A vector a rank; the layers' numbers differ in size up to ten thousandfold."""
    x = vector(p * N, seed).view(p, N)
    sizes = torch.tensor([1.0, 100.0, 0.01]).repeat(4)
    return x * torch.repeat_interleave(sizes, torch.tensor(LAYERS))


def over_ranks():
    rank, p = dist.get_rank(), dist.get_world_size()
    found = {}
    with traffic.counting() as counted:
        found["vote"] = majority_vote(whole(p)[rank])
    found["bytes of the vote"] = counted.bytes_sent()
    chance = StochasticRounding()
    found["ternary"] = torch.stack(
        [average_ternary(whole(p)[rank], LAYERS, clip=None, chance=chance) for _ in range(60)]
    )
    residuals = Residuals()
    found["1-bit SGD"] = [
        average(whole(p, s)[rank], OneBitSGD(), residuals=residuals) for s in (0, 1)
    ]
    found["QSGD"] = average(whole(p)[rank], QSGD(bucket=50))
    broken = whole(p)[rank]
    broken[-1] = math.nan if rank == p - 1 else 1.0
    found["not finite"] = average_ternary(broken, LAYERS)
    broken[-1] = math.nan
    found["its vote"] = majority_vote(broken)
    # Chance replaced by a half: what comes out can be written down.
    StochasticRounding.round_ = lambda self, steps: steps.add_(0.5).floor_()
    with traffic.counting() as counted:
        found["ternary by half"] = average_ternary(whole(p)[rank], LAYERS)
    found["bytes of ternary"] = counted.bytes_sent()
    return found


def ternary_reference(p):
    """TernGrad with shared scales, in one process, one layer after the other."""
    means = []
    for layer in whole(p).split(LAYERS, dim=1):
        scales = [min(g.abs().max(), 2.5 * g.square().mean().sqrt()) for g in layer]
        shared = max(scales)
        total = torch.zeros(layer.shape[1])
        for g in layer:
            clipped = g.clamp(-shared, shared)
            total += torch.floor(clipped / shared + 0.5)
        means.append(total * shared / p)
    return torch.cat(means)


@pytest.mark.parametrize("p", [1, 3, *taking_turns(2, 4, about="dtcourse/compression/")])
def test_means_and_votes_are_those_of_one_process_and_bytes_the_formulas(p):
    run = launch(over_ranks, p, backend="ring")
    x, size = whole(p), up(N, p)
    for found in run:
        for name, value in found.items():
            if isinstance(value, torch.Tensor) and name != "not finite":
                assert torch.equal(value, run[0][name]), f"{name}: the same on every rank"
        # The vote: the majority, at a tie who counts that part
        votes = torch.where(x < 0, -1.0, 1.0)
        counts = torch.arange(N) // size
        casting = votes[counts, torch.arange(N)]
        right = torch.where(votes.sum(0) == 0, casting, votes.sum(0).sign())
        assert torch.equal(found["vote"], right)
        assert found["bytes of the vote"] == 2 * (p - 1) * up(size, 8)
        # TernGrad
        torch.testing.assert_close(found["ternary by half"], ternary_reference(p))
        bits = 2 if p == 1 else 4
        numbers = (p - 1) * (up(size, 5) + up(size * bits, 8))
        scales = 2 * (p - 1) * 4 * len(LAYERS) // p
        assert found["bytes of ternary"] == numbers + scales
        tries = found["ternary"].double()
        scales = torch.cat([g.abs().max().expand(g.shape[1]) for g in x.split(LAYERS, dim=1)])
        limit = allowed(x.abs().mean(0), scales / p, len(tries))
        assert ((tries.mean(0) - x.mean(0)).abs() <= limit).all()
        assert found["not finite"][-LAYERS[2] :].isnan().all(), "the layer with a NaN in it"
        assert found["not finite"][: -LAYERS[2]].isfinite().all(), "the others know nothing of it"
        assert found["its vote"].isfinite().all()
        # 1-bit SGD, both ways with what was left out before
        compressor, own, part = OneBitSGD(), torch.zeros(p, N), torch.zeros(p, size)
        for step, mean in enumerate(found["1-bit SGD"]):
            given = torch.nn.functional.pad(whole(p, step) + own, (0, size * p - N)).view(
                p, p, size
            )
            came = torch.stack(
                [torch.stack([through(compressor, c) for c in row]) for row in given]
            )
            own = (given - came).flatten(1)[:, :N]
            sums = came.mean(0) + part
            back = torch.stack([through(compressor, one) for one in sums])
            part = sums - back
            torch.testing.assert_close(mean, back.flatten()[:N], rtol=1e-4, atol=1e-5)
        error = (found["QSGD"] - x.mean(0)).norm() / x.mean(0).norm()
        assert error < 1.5


def through_ddp():
    rank, p = dist.get_rank(), dist.get_world_size()
    inputs = torch.randn(4 * p, 6, generator=torch.Generator().manual_seed(0)).chunk(p)[rank]
    found = []
    for wrap in (DistributedDataParallel, TorchDDP):
        for state in (TernGradState(), MajorityVote()):
            torch.manual_seed(0)
            model = wrap(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 2)))
            model.register_comm_hook(state, compression_hook)
            for _ in range(2):
                model.zero_grad()
                model(inputs).square().mean().backward()
            found.append([q.grad.clone() for q in model.parameters()])
    ours, ours_voted, torchs, torchs_voted = found
    for a, b in zip(ours_voted, torchs_voted, strict=True):
        assert torch.equal(a, b) and set(a.unique().tolist()) <= {-1.0, 1.0}
    for gradients in (ours, torchs):
        for layer in gradients:  # whole multiples of the layer's scale / p, -p to p of them
            steps = layer.abs()[layer != 0].min()
            times = layer / steps
            torch.testing.assert_close(times, times.round(), rtol=0, atol=1e-3)
            assert times.abs().max() <= p + 0.01
    return [torch.cat([g.flatten() for g in each]) for each in found]


def test_as_hooks_of_ours_and_of_pytorchs():
    run = launch(through_ddp, 2)
    for mine, theirs in zip(run[0], run[1], strict=True):
        assert torch.equal(mine, theirs)


def wrong_layers():
    with pytest.raises(ValueError, match=re.escape("layers of 3 numbers are no vector of (4,)")):
        average_ternary(torch.zeros(4), [3])


def test_layers_that_are_not_the_vector_are_refused():
    launch(wrong_layers, 1)
