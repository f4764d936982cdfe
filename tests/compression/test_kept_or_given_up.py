"""What error feedback keeps where a step is skipped (on all ranks, of all buckets), and where buckets change."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import launch
from dtcourse.compression import (
    CompressionState,
    DeepGradientState,
    Float8,
    HalfPrecision,
    IntegerQuantizer,
    OneBitSGD,
    PowerSGDState,
    RandomK,
    RandomProjection,
    Residuals,
    ScaledSign,
    SignThreshold,
    SketchedTopK,
    Threshold,
    TopBlocks,
    TopK,
    TopRows,
    average,
    compression_hook,
    deep_gradient_hook,
)
from dtcourse.data_parallel import DistributedDataParallel
from tests.turns import taking_turns

METHODS = {
    "bfloat16": lambda: HalfPrecision(torch.bfloat16),
    "float8": Float8,
    "2 bits": lambda: IntegerQuantizer(2, block=5),
    "sign": ScaledSign,
    "1-bit SGD": lambda: OneBitSGD(4),
    "top k": lambda: TopK(0.25),
    "blocks": lambda: TopBlocks(0.25, block=4),
    "threshold": lambda: Threshold(0.5),
    "signs above a threshold": lambda: SignThreshold(0.5),
    "random k": lambda: RandomK(0.25, unbiased=False),
    "projection": lambda: RandomProjection(0.25, block=8, unbiased=False),
    "sketched": lambda: SketchedTopK(0.25),
}


def vectors():
    """Two vectors of a rank, and one that is broken in one number, on rank 0."""
    make = torch.Generator().manual_seed(dist.get_rank())
    return [torch.randn(18, generator=make) for _ in range(3)]


def one_vector():
    found = {}
    for name, make in METHODS.items():
        for bad in (math.nan, math.inf, -math.inf):
            for place in (0, 7, 17):
                first, broken, last = vectors()
                if dist.get_rank() == 0:
                    broken[place] = bad
                compressor, residuals, seen = make(), Residuals(), []
                average(first, compressor, residuals=residuals)
                kept = [None if r is None else r.clone() for r in (residuals.own, residuals.part)]
                mean = average(broken, compressor, residuals=residuals)
                now = [residuals.own, residuals.part]
                same = all(b is a or torch.equal(a, b) for a, b in zip(kept, now, strict=True))
                seen = bool(mean.isfinite().all()), residuals.finite, same
                after = average(last, compressor, residuals=residuals).isfinite().all()
                found[name, bad, place] = (*seen, bool(after))
    unseen = []
    for bad in (math.nan, math.inf):
        for place in range(18):
            for method in (RandomK(0.1), RandomK(0.1, unbiased=False)):
                x = torch.ones(18).index_fill_(
                    0, torch.tensor([place]), bad if dist.get_rank() == 1 else 1.0
                )
                unseen.append(bool(average(x, method).isfinite().all()))
    return found, unseen


@pytest.mark.parametrize("p", [3, *taking_turns(2, about="dtcourse/compression/")])
def test_what_is_kept_stays_as_it_was_on_every_rank(p):
    for found, unseen in launch(one_vector, p, timeout=240.0):
        wrong = {name: seen for name, seen in found.items() if seen != (False, False, True, True)}
        assert not wrong, "finite, said to be, unchanged, finite afterwards"
        assert not any(unseen), "random k: also where it is not drawn"


# --- in DistributedDataParallel -----------------------------------------------------------------------------------


class Model(nn.Module):
    """Several buckets, and a parameter of no dimension."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(8, 24), nn.Linear(24, 24), nn.Linear(24, 12)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.third(self.second(self.first(x).tanh()).tanh()) * self.scale


STATES = {
    "sign": lambda o: (CompressionState(ScaledSign()), compression_hook),
    "2 bits": lambda o: (CompressionState(IntegerQuantizer(2, block=64)), compression_hook),
    "top k": lambda o: (CompressionState(TopK(0.1)), compression_hook),
    "random k": lambda o: (CompressionState(RandomK(0.1, unbiased=False)), compression_hook),
    "threshold": lambda o: (CompressionState(Threshold(0.01)), compression_hook),
    "sketched": lambda o: (CompressionState(SketchedTopK(0.1)), compression_hook),
    "rows": lambda o: (TopRows(0.2), compression_hook),
    "PowerSGD": lambda o: (PowerSGDState(1), compression_hook),
    "deep gradient": lambda o: (DeepGradientState(o, ratio=0.1, warm_up_epochs=0), deep_gradient_hook),
    "deep gradient, clipped": lambda o: (
        DeepGradientState(o, ratio=0.1, warm_up_epochs=0, clip_norm=0.5), deep_gradient_hook
    ),
}  # fmt: skip


def held(state):
    """All that a state keeps of gradients, as one vector."""
    names = ("left_out", "left_out_of_parts", "factors", "velocity", "left")
    kept = [one for name in names for one in getattr(state, name, {}).values()]
    return torch.cat([one.flatten().clone() for one in kept])


def one_broken_layer(first, last):
    """A step in which rank 1's gradient of one layer alone is not finite, of the first or last bucket."""
    found = {}
    for name, make in STATES.items():
        for wrap in (DistributedDataParallel, TorchDDP):
            model = wrap(Model(), bucket_cap_mb=0.002)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            state, hook = make(optimizer)
            model.register_comm_hook(state, hook)
            layer = model.module.first if first else model.module.third
            before, bad = None, [False]
            layer.weight.register_hook(lambda g, bad=bad: g * math.inf if bad[0] else g)
            finite = []
            for step in range(5):
                make_batch = torch.Generator().manual_seed(7 * step + dist.get_rank())
                bad[0] = step == 3 and dist.get_rank() == (dist.get_world_size() - 1 if last else 0)
                before = held(state) if step == 3 else before
                optimizer.zero_grad()
                model(torch.randn(6, 8, generator=make_batch)).square().mean().backward()
                finite.append(all(bool(p.grad.isfinite().all()) for p in model.parameters()))
                if step == 3:
                    same = torch.equal(before, held(state)) and len(before) > 0
                if finite[-1]:
                    optimizer.step()
            found[name, wrap.__module__] = finite, same
    return found


@pytest.mark.parametrize(("first", "last"), [(True, True), (False, False)])
def test_a_step_in_which_one_bucket_is_not_finite_changes_nothing_that_is_kept(first, last):
    for found in launch(one_broken_layer, 2, first, last, timeout=240.0):
        for name, (finite, same) in found.items():
            assert finite == [True, True, True, False, True], name
            assert same, name


class OutOfOrder(nn.Module):
    """Registered in another order than used, so that buckets change after the first step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.third, self.first, self.second = nn.Linear(16, 4), nn.Linear(8, 16), nn.Linear(16, 16)

    def forward(self, x):
        return self.third(self.second(self.first(x).relu()).relu())


def regrouped():
    """All that was given is what came and what is still left out, of ranks and of their parts of sums."""
    state, rank, p = (
        CompressionState(IntegerQuantizer(2, block=64)),
        dist.get_rank(),
        dist.get_world_size(),
    )
    wrapped, alone = DistributedDataParallel(OutOfOrder(), bucket_cap_mb=0.001), OutOfOrder()
    wrapped.register_comm_hook(state, compression_hook)
    came = given = 0.0
    groups = []
    for step in range(3):
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(step + 10 * rank))
        wrapped.zero_grad(), alone.zero_grad()
        wrapped(x).square().mean().backward()
        alone(x).square().mean().backward()
        given = given + torch.cat([w.grad.flatten() for w in alone.parameters()]) / p
        came = came + torch.cat([w.grad.flatten() for w in wrapped.module.parameters()])
        groups.append([list(b.parameters()) for b in wrapped.reducer.buckets])
    kept = {w: state.left_out[w] / p for w in wrapped.module.parameters()}
    for bucket in groups[-1]:
        sizes = [w.numel() for w in bucket]
        order = state._model.order
        key = tuple(next(i for i, known in enumerate(order) if known is w) for w in bucket)
        part = state.left_out_of_parts[key]
        whole = torch.zeros(len(part) * p)
        whole[rank * len(part) : (rank + 1) * len(part)] = part
        for w, values in zip(bucket, whole[: sum(sizes)].split(sizes), strict=True):
            kept[w] = kept[w] + values
    kept = torch.cat([kept[w] for w in wrapped.module.parameters()])
    dist.all_reduce(kept)
    dist.all_reduce(given)
    return len({str([list(map(id, b)) for b in g]) for g in groups}), float(
        (came + kept - given).abs().max()
    )


@pytest.mark.parametrize("p", [3, *taking_turns(2, about="dtcourse/compression/")])
def test_what_is_left_out_of_a_sum_is_not_lost_when_buckets_change(p):
    for groups, off in launch(regrouped, p):
        assert groups == 2, "they do change"
        assert off < 1e-5
