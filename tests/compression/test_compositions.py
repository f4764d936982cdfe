"""Each method in what training does: accumulation, a GradScaler's skipped step, layers that go unused, buckets of odd
sizes, a parameter of no number and one of no dimension, a rank without a batch; at 2, 3 and 4 ranks.

The weights after each step are those of a simulation in one process, which has every rank's batch, writes averaging and
error feedback apart, and knows of DistributedDataParallel only which parameters share a bucket.
"""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import launch
from dtcourse.compression import (
    QSGD,
    AdaptiveThreshold,
    CompressionState,
    CountSketch,
    DeepGradientState,
    EliasQSGD,
    Float8,
    Identity,
    IntegerQuantizer,
    OneBitSGD,
    PowerSGDState,
    RandomK,
    RandomProjection,
    SampledThreshold,
    ScaledSign,
    SignThreshold,
    TernGrad,
    Threshold,
    TopBlocks,
    TopK,
    TopRows,
    compression_hook,
    deep_gradient_hook,
)
from dtcourse.compression.compressor import ALL_REDUCE, REDUCE_SCATTER, Payload
from dtcourse.data_parallel import DistributedDataParallel
from tests.turns import taking_turns

# Each value of each parameter is tried every time, their other combinations by turns (tests/turns.py).
pytestmark = pytest.mark.each_once("dtcourse/compression/")

LR, SKIPPED = 0.1, 3
FEEDBACK = {
    "unchanged": Identity,
    "float8": Float8,
    "2 bits": lambda: IntegerQuantizer(2, block=10),
    "8 bits by chance": lambda: IntegerQuantizer(8, stochastic=True),
    "sign": ScaledSign,
    "1-bit SGD": lambda: OneBitSGD(7),
    "top k": lambda: TopK(0.1),
    "blocks": lambda: TopBlocks(0.2, block=7),
    "random k": lambda: RandomK(0.2, unbiased=False),
    "projection": lambda: RandomProjection(0.3, block=16, unbiased=False),
    "threshold": lambda: Threshold(0.02),
    "signs above a threshold": lambda: SignThreshold(0.02),
    "sampled threshold": lambda: SampledThreshold(0.1),
    "threshold that adapts": lambda: AdaptiveThreshold(0.1),
}
NO_FEEDBACK = {
    "QSGD": QSGD,
    "Elias": lambda: EliasQSGD(3),
    "TernGrad": TernGrad,
    "random k, unbiased": lambda: RandomK(0.3),
    "count-sketch": lambda: CountSketch(0.9, rows=3),
}


class Model(nn.Module):
    """Registered in the order of use, so that buckets stay; of sizes that no number of ranks divides."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(7, 9), nn.Linear(9, 9), nn.Linear(9, 5)
        self.end = End()
        self.first.bias.requires_grad_(False)

    def forward(self, x, middle=True):
        x = self.first(x).tanh()
        x = self.middle(x).tanh() if middle else x
        return self.end(self.last(x))


class End(nn.Module):
    """A learned scale, and a parameter without a number."""

    def __init__(self):
        super().__init__()
        self.scale, self.nothing = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.empty(0, 3))

    def forward(self, x):
        return x * self.scale + self.nothing.sum()


# A step: its micro-batches, each with the rows of every rank and whether the middle layer is used there.
def program(p):
    rows = [5] * p
    return [
        [(rows, [True] * p)],
        [(rows, [True] * p), (rows, [True] * p), (rows, [True] * p)],  # two of them under no_sync
        [(rows, [rank % 2 == 0 for rank in range(p)])],
        [(rows, [True] * p)],  # SKIPPED: not finite on the last rank
        [([0, *rows[1:]], [True] * p)],  # rank 0 has no batch
        [(rows, [rank == p - 1 for rank in range(p)])],
        [(rows, [True] * p)],
    ]


def loss_of(model, step, micro, rank, p):
    rows, used = program(p)[step][micro]
    make = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    x = torch.randn(rows[rank], 7, generator=make)
    loss = model(x, used[rank]).square().sum() / 5 / len(program(p)[step])
    return loss * math.inf if step == SKIPPED and rank == p - 1 else loss


def trained(wrap, hook_of):
    """The weights after each step, and the buckets of each, as names."""
    rank, p = dist.get_rank(), dist.get_world_size()
    model = wrap(Model(), bucket_cap_mb=0.0002, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    model.register_comm_hook(*hook_of(optimizer))
    # One scale all the time: what is left out is in its unit.
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, backoff_factor=0.5, growth_interval=1000)
    names = {id(w): name for name, w in model.module.named_parameters()}
    weights, buckets = [], []
    for step, micros in enumerate(program(p)):
        optimizer.zero_grad()
        for micro in range(len(micros)):
            if micro + 1 < len(micros):
                with model.no_sync():
                    scaler.scale(loss_of(model, step, micro, rank, p)).backward()
            else:
                scaler.scale(loss_of(model, step, micro, rank, p)).backward()
        scaler.step(optimizer)
        scaler.update(1.0)
        weights.append({n: w.detach().clone() for n, w in model.module.named_parameters()})
        if wrap is DistributedDataParallel:
            buckets.append([[names[id(w)] for w in b.parameters()] for b in model.reducer.buckets])
    return weights, buckets


# --- the same in one process --------------------------------------------------------------------------------------


def of_rank(make, rank):
    """The method of that rank, which draws what that rank draws; and of its second stage."""
    method = make()
    for one in {id(m): m for m in (method, method.second_stage())}.values():
        if hasattr(one, "_chance"):
            one._chance._random = torch.Generator().manual_seed(one._chance.seed * 1_000_003 + rank)
    return method


def through(method, x, slot):
    method.slot = slot
    return method.decompress(method.compress(x))


def averaged(methods, xs, own, part, slot):
    """The mean of xs, one of each rank; what is left out of them, and of the parts of their sum."""
    p, n = len(xs), len(xs[0])
    if methods[0].scheme == ALL_REDUCE:
        sent = [x / p + left for x, left in zip(xs, own, strict=True)]
        each = [m.compress(x) for m, x in zip(methods, sent, strict=True)]
        left = [x - m.decompress(one) for m, x, one in zip(methods, sent, each, strict=True)]
        whole = Payload((sum(one.wire[0] for one in each),), n, each[0].known)
        return methods[0].decompress(whole), left, part
    sent = [x + left for x, left in zip(xs, own, strict=True)]
    if methods[0].scheme != REDUCE_SCATTER:
        came = [through(m, x, slot) for m, x in zip(methods, sent, strict=True)]
        return sum(came) / p, [x - y for x, y in zip(sent, came, strict=True)], part
    size = math.ceil(n / p)
    cut = [torch.cat([x, torch.zeros(size * p - n)]).split(size) for x in sent]
    came = [
        torch.stack([through(m, one, slot) for one in of])
        for m, of in zip(methods, cut, strict=True)
    ]
    sums = [sum(of[r] for of in came) / p + part[r] for r in range(p)]
    back = [through(m.second_stage(), one, slot) for m, one in zip(methods, sums, strict=True)]
    left = [x - of.flatten()[:n] for x, of in zip(sent, came, strict=True)]
    return torch.cat(back)[:n], left, [a - b for a, b in zip(sums, back, strict=True)]


def simulated(make, p, buckets, feedback):
    model, methods = Model(), [of_rank(make, rank) for rank in range(p)]
    weights, own, parts = [], {}, {}
    for step, micros in enumerate(program(p)):
        gradients = []
        for rank in range(p):
            model.zero_grad()
            for micro in range(len(micros)):
                loss_of(model, step, micro, rank, p).backward()
            gradients.append({n: torch.zeros_like(w) if w.grad is None else w.grad.clone()
                              for n, w in model.named_parameters()})  # fmt: skip
        means, new_own, new_parts = {}, {}, {}
        for names in buckets[step]:
            xs = [torch.cat([of[name].flatten() for name in names]) for of in gradients]
            key, size = tuple(names), math.ceil(len(xs[0]) / p)
            left = own.get(key, [torch.zeros_like(x) for x in xs])
            part = parts.get(key, [torch.zeros(size)] * p)
            mean, new_own[key], new_parts[key] = averaged(methods, xs, left, part, key)
            shapes = [model.get_parameter(name).shape for name in names]
            each = mean.split([shape.numel() for shape in shapes])
            means |= {n: m.view(s) for n, m, s in zip(names, each, shapes, strict=True)}
        if all(mean.isfinite().all() for mean in means.values()):
            with torch.no_grad():
                for name, mean in means.items():
                    model.get_parameter(name).sub_(mean, alpha=LR)
            if feedback:
                own, parts = new_own, new_parts
        weights.append({n: w.detach().clone() for n, w in model.named_parameters()})
    return weights


def farthest(got, right):
    """By step, of all weights; infinite where one is no number."""
    return [
        max(float((a[n] - b[n]).abs().max()) if a[n].numel() else 0.0 for n in b)
        for a, b in zip(got, right, strict=True)
    ]


def composed(methods, feedback):
    p, found = dist.get_world_size(), {}
    for name, make in methods.items():
        state = CompressionState(make(), error_feedback=feedback)
        weights, buckets = trained(
            DistributedDataParallel, lambda o, state=state: (state, compression_hook)
        )
        right = simulated(make, p, buckets, feedback)
        found[name] = farthest(weights, right), len({str(b) for b in buckets}), len(buckets[0])
        assert farthest([weights[SKIPPED]], [weights[SKIPPED - 1]]) == [0.0], "it was skipped"
        assert farthest([weights[SKIPPED]], [weights[SKIPPED + 1]]) != [0.0]
    return found


@pytest.mark.parametrize("p", [3, *taking_turns(2, 4, about="dtcourse/compression/")])
@pytest.mark.parametrize(
    ("methods", "feedback"), [(FEEDBACK, True), (FEEDBACK | NO_FEEDBACK, False)]
)
def test_weights_are_those_of_one_process(p, methods, feedback):
    for found in launch(composed, p, methods, feedback, timeout=240.0):
        for name, (off, different, count) in found.items():
            assert different == 1 and count == 3, "buckets stay as they are"
            assert max(off) < 2e-5, f"{name}: off by {off}, by step"


# --- hooks of their own, where they leave nothing out -------------------------------------------------------------

WHOLE = {
    "rows": lambda o: (TopRows(1.0), compression_hook),
    "PowerSGD": lambda o: (PowerSGDState(9, min_compression_rate=0), compression_hook),
    "deep gradient": lambda o: (
        DeepGradientState(o, ratio=1.0, momentum=0.0, warm_up_epochs=0), deep_gradient_hook
    ),
    "deep gradient, clipped": lambda o: (
        DeepGradientState(o, ratio=1.0, momentum=0.0, warm_up_epochs=0, clip_norm=1e6), deep_gradient_hook
    ),
    "unchanged": lambda o: (CompressionState(Identity()), compression_hook),
}  # fmt: skip


def whole():
    p, found = dist.get_world_size(), {}
    _, buckets = trained(DistributedDataParallel, WHOLE["unchanged"])
    right = simulated(Identity, p, buckets, feedback=False)
    for name, hook_of in WHOLE.items():
        for wrap in (DistributedDataParallel, TorchDDP):
            found[name, wrap.__module__] = farthest(trained(wrap, hook_of)[0], right)
    return found


@pytest.mark.parametrize("p", [3, *taking_turns(2, 4, about="dtcourse/compression/")])
def test_hooks_that_leave_nothing_out_are_plain_training(p):
    for found in launch(whole, p, timeout=240.0):
        assert all(max(off) < 2e-5 for off in found.values()), found


# --- what is dropped ----------------------------------------------------------------------------------------------


def unused_everywhere(wrap):
    """By parameter, of all that was given over the steps, what neither came nor is left out; and what was not taken."""
    rank, p = dist.get_rank(), dist.get_world_size()
    model, alone = wrap(Model(), find_unused_parameters=True), Model()
    state, dropped = CompressionState(TopK(0.8)), {}

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        def took(future):
            parts = future.value().split([w.numel() for w in bucket.parameters()])
            if step == 2:
                dropped.update(
                    zip(bucket.parameters(), (part.clone() for part in parts), strict=True)
                )
            return future.value()

        return compression_hook(state, bucket).then(took)

    model.register_comm_hook(state, hook)
    off = {name: torch.zeros(w.numel()) for name, w in alone.named_parameters() if w.requires_grad}
    for step in range(4):
        model.zero_grad(), alone.zero_grad()
        x = torch.randn(5, 7, generator=torch.Generator().manual_seed(10 * step + rank))
        for one in (model, alone):
            one(x, step != 2).square().sum().backward()
        for name in off:
            mine, got = alone.get_parameter(name).grad, model.module.get_parameter(name).grad
            if mine is not None:
                off[name] += mine.flatten() / p
            if got is not None and rank == 0:
                off[name] -= got.flatten()
    found = {}
    for name in off:
        w = model.module.get_parameter(name)
        off[name] -= state.left_out[w] / p
        dist.all_reduce(off[name])
        due = dropped[w] if name.startswith("middle") else torch.zeros(w.numel())
        found[name] = float((off[name] - due).abs().sum()), float(due.abs().sum())
    return found


@pytest.mark.parametrize("wrap", [DistributedDataParallel, TorchDDP], ids=["ours", "PyTorch's"])
def test_what_is_sent_of_a_parameter_that_no_rank_uses_is_dropped_and_nothing_else(wrap):
    """DistributedDataParallel leaves its gradient alone: the docstring of comm_hook.py says so."""
    for found in launch(unused_everywhere, 2, wrap):
        assert all(off < 1e-4 for off, _ in found.values()), found
        assert found["middle.weight"][1] > 0.01, "something is sent of it"
