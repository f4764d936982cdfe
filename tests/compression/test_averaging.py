"""The mean of all ranks' vectors: the same on all, equal to one written apart, bytes by formula;
error feedback loses nothing."""

from __future__ import annotations

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
    Float8,
    HalfPrecision,
    Identity,
    IntegerQuantizer,
    RandomK,
    Residuals,
    ScaledSign,
    TopK,
    average,
    compression_hook,
)
from dtcourse.compression.compressor import ALL_GATHER, ALL_GATHERV, ALL_REDUCE, REDUCE_SCATTER
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.verify import compare, gradients_of
from tests.turns import taking_turns

N = 1001  # no number of ranks divides it
STEPS = 4
METHODS = {
    "float16": HalfPrecision,
    "float8": Float8,
    "8 bits": lambda: IntegerQuantizer(8, block=64),
    "2 bits": lambda: IntegerQuantizer(2, block=100),
    "sign": ScaledSign,
    "top k": lambda: TopK(0.05),
    "random k": lambda: RandomK(0.05, unbiased=False),
}


def vectors(p, step):
    """Whole numbers: their sums are exact in any order."""
    make = torch.Generator().manual_seed(step)
    return torch.randint(-50, 50, (p, N), generator=make).float()


def reference(make, p, feedback):
    """One process, written apart: the means of STEPS steps, and what is left out at the end,
    of everything ever given."""
    workers = [make() for _ in range(p)]
    size = -(-N // p)
    own, part = torch.zeros(p, N), torch.zeros(p, size)
    means = []
    for step in range(STEPS):
        x = vectors(p, step)
        way = workers[0].scheme
        x = (x / p if way == ALL_REDUCE else x) + (own if feedback else 0)
        if way == REDUCE_SCATTER:
            parts = torch.nn.functional.pad(x, (0, size * p - N)).view(p, p, size)
            through = torch.stack([
                torch.stack([w.decompress(w.compress(one)) for one in of_rank])
                for w, of_rank in zip(workers, parts, strict=True)
            ])  # fmt: skip
            own = x - through.flatten(1)[:, :N]
            sums = through.sum(0) / p + (part if feedback else 0)
            back = torch.stack(
                [w.decompress(w.compress(one)) for w, one in zip(workers, sums, strict=True)]
            )
            part = sums - back
            means.append(back.flatten()[:N])
        else:
            through = torch.stack(
                [w.decompress(w.compress(one)) for w, one in zip(workers, x, strict=True)]
            )
            own = x - through
            means.append(through.sum(0) if way == ALL_REDUCE else through.mean(0))
    return means


def averaged():
    rank, p = dist.get_rank(), dist.get_world_size()
    found = {}
    for name, make in METHODS.items():
        for feedback in (False, True):
            compressor, residuals = make(), Residuals() if feedback else None
            with traffic.counting() as counted:
                means = [
                    average(vectors(p, step)[rank], compressor, residuals=residuals)
                    for step in range(STEPS)
                ]
            found[name, feedback] = means, counted.bytes_sent(), residuals
    exact = [
        average(vectors(p, 0)[rank], Identity(way))
        for way in (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_GATHERV)
    ]
    return found, exact


@pytest.mark.parametrize("p", [1, 3, *taking_turns(2, 4, about="dtcourse/compression/")])
def test_means_are_those_of_one_process_and_bytes_the_formulas(p):
    run = launch(averaged, p, backend="ring")
    for found, exact in run:
        for mean in exact:
            torch.testing.assert_close(mean, vectors(p, 0).mean(0), rtol=1e-6, atol=1e-5)
        for (name, feedback), (means, sent, _) in found.items():
            for mean, first in zip(means, run[0][0][name, feedback][0], strict=True):
                assert torch.equal(mean, first), "the same on every rank"
            for step, (mean, right) in enumerate(
                zip(means, reference(METHODS[name], p, feedback), strict=True)
            ):
                # float16 sums of several ranks are rounded on the way
                limit = 2e-3 if name == "float16" else 1e-5
                error = (mean - right).norm() / right.norm()
                assert error < limit, f"{name}, {feedback=}, step {step}: {error}"
            compressor = METHODS[name]()
            if compressor.scheme == REDUCE_SCATTER:
                formula = 2 * (p - 1) * compressor.nbytes(-(-N // p))
            elif compressor.scheme == ALL_GATHER:
                formula = (p - 1) * compressor.nbytes(N)
            else:  # a ring's all-reduce, in chunks that are padded
                formula = 2 * (p - 1) * -(-compressor.nbytes(N) // p)
                assert abs(sent - STEPS * formula) <= STEPS * 2 * (p - 1) * 4
                continue
            assert sent == STEPS * formula, name


@pytest.mark.parametrize("p", [2, 4])
def test_with_error_feedback_nothing_is_lost(p):
    """All that was given, as means, is what came out and what is still left out."""
    run = launch(averaged, p)
    given = sum(vectors(p, step).mean(0) for step in range(STEPS))
    for name in METHODS:
        if name == "float16":
            continue  # what is rounded on the way nobody keeps
        means = run[0][0][name, True][0]
        kept = [found[name, True][2] for found, _ in run]
        way = METHODS[name]().scheme
        left = sum(k.own for k in kept) / (1 if way == ALL_REDUCE else p)
        if way == REDUCE_SCATTER:
            left = left + torch.cat([k.part for k in kept])[:N]
        torch.testing.assert_close(sum(means) + left, given, rtol=1e-4, atol=1e-3)
        without = sum(run[0][0][name, False][0])
        assert (sum(means) - given).norm() < (without - given).norm(), name


# --- in DistributedDataParallel -----------------------------------------------------------------------------------


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)
    )


def batch(step):
    make = torch.Generator().manual_seed(step)
    return torch.randn(12, 8, generator=make)


def trained(wrap, state, steps=6):
    """The gradients of each step."""
    rank, p = dist.get_rank(), dist.get_world_size()
    wrapped = wrap(model())
    if state is not None:
        wrapped.register_comm_hook(state, compression_hook)
    optimizer, found = torch.optim.SGD(wrapped.parameters(), lr=0.1), []
    for step in range(steps):
        optimizer.zero_grad()
        wrapped(batch(step).chunk(p)[rank]).square().mean().backward()
        found.append(gradients_of(wrapped.module))
        optimizer.step()
    return found


def ours(module):
    return DistributedDataParallel(module, bucket_cap_mb=0.001)


def torchs(module):
    return TorchDDP(module, bucket_cap_mb=0.001)


def all_hooks():
    plain = trained(ours, None)
    for way in (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_GATHERV):
        for wrap in (ours, torchs):
            for feedback in (False, True):
                state = CompressionState(Identity(way), error_feedback=feedback)
                for got, right in zip(trained(wrap, state), plain, strict=True):
                    compare(got, right, 1e-5, f"{way}: gradient")
    for name, make in METHODS.items():
        for wrap in (ours, torchs):
            last = trained(wrap, CompressionState(make()))[-1]
            mine = torch.cat([gradient.flatten() for gradient in last.values()])
            everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, mine)
            assert all(torch.equal(each, everyone[0]) for each in everyone), name


@pytest.mark.parametrize("p", [3, *taking_turns(2, about="dtcourse/compression/")])
def test_as_a_hook_of_ours_and_of_pytorchs(p):
    launch(all_hooks, p)


class OutOfOrder(nn.Module):
    """Registered in another order than used, so that the first guess at buckets is wrong."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.third, self.first, self.second = nn.Linear(16, 4), nn.Linear(8, 16), nn.Linear(16, 16)

    def forward(self, x):
        return self.third(self.second(self.first(x).relu()).relu())


def regrouped():
    """Buckets change after the first step; what was left out of a parameter stays with it."""
    state = CompressionState(TopK(0.02))
    wrapped, rank, p = ours(OutOfOrder()), dist.get_rank(), dist.get_world_size()
    wrapped.register_comm_hook(state, compression_hook)
    given = {n: torch.zeros_like(q) for n, q in wrapped.module.named_parameters()}
    came = {n: torch.zeros_like(q) for n, q in wrapped.module.named_parameters()}
    groups = set()
    for step in range(4):
        wrapped.zero_grad()
        x = batch(step).chunk(p)[rank]
        alone = OutOfOrder()
        alone(x).square().mean().backward()
        wrapped(x).square().mean().backward()
        groups.add(tuple(tuple(map(id, b.parameters())) for b in wrapped.reducer.buckets))
        for name, q in wrapped.module.named_parameters():
            mine = alone.get_parameter(name).grad / p
            dist.all_reduce(mine)
            given[name] += mine
            came[name] += q.grad
    for name, q in wrapped.module.named_parameters():
        left = state.left_out[q].view_as(q) / p
        dist.all_reduce(left)
        torch.testing.assert_close(came[name] + left, given[name], rtol=1e-4, atol=1e-5)
    return len(groups)


def test_what_is_left_out_stays_with_its_parameter_when_buckets_change():
    assert [*launch(regrouped, 2)] == [2, 2], "they do change"


def bad():
    found = []
    for x in (torch.zeros(2, 2), torch.zeros(3, dtype=torch.double)):
        with pytest.raises(
            ValueError, match=re.escape("compression takes a vector of float32")
        ) as caught:
            average(x, TopK())
        found.append(str(caught.value))
    return found


def test_what_is_no_vector_is_refused():
    assert launch(bad, 1)[0][0].endswith("got (2, 2) of torch.float32")
