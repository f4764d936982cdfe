"""Saved after some steps, loaded into new objects, gone on with: the same to the bit as without; what is refused."""

from __future__ import annotations

import io
import itertools
import re

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
    Identity,
    IntegerQuantizer,
    OneBitAdam,
    PowerSGDState,
    RandomK,
    RandomProjection,
    ScaledSign,
    SketchedTopK,
    TernGrad,
    TernGradState,
    TopK,
    TopRows,
    compression_hook,
    deep_gradient_hook,
)
from dtcourse.data_parallel import DistributedDataParallel


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return x * self.factor


class Model(nn.Module):
    """Several buckets, two layers of one size, and a parameter of no dimension; registered in the order of use."""

    def __init__(self, width=24):
        super().__init__()
        torch.manual_seed(0)
        sizes = (8, width, width, width, 12)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        self.scale = Scale()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return self.scale(x)


def hooked(make, **options):
    return lambda optimizer: (CompressionState(make(), **options), compression_hook)


WITHOUT = {"error_feedback": False}
STATES = {
    "sign": hooked(ScaledSign),
    "2 bits": hooked(lambda: IntegerQuantizer(2, block=64)),
    "8 bits by chance": hooked(lambda: IntegerQuantizer(8, stochastic=True)),
    "QSGD": hooked(QSGD, **WITHOUT),
    "Elias": hooked(lambda: EliasQSGD(5), **WITHOUT),
    "TernGrad": hooked(TernGrad, **WITHOUT),
    "top k": hooked(lambda: TopK(0.1)),
    "random k": hooked(lambda: RandomK(0.1, unbiased=False)),
    "random k, unbiased": hooked(lambda: RandomK(0.1), **WITHOUT),
    "projection": hooked(lambda: RandomProjection(0.1, block=64, unbiased=False)),
    "count-sketch": hooked(lambda: CountSketch(0.5), **WITHOUT),
    "sketched": hooked(lambda: SketchedTopK(0.1, CountSketch(0.5))),
    "threshold that adapts": hooked(lambda: AdaptiveThreshold(0.1, tolerance=3.0)),
    "TernGrad, shared": lambda o: (TernGradState(), compression_hook),
    "rows": lambda o: (TopRows(0.2), compression_hook),
    "PowerSGD": lambda o: (PowerSGDState(2), compression_hook),
    "PowerSGD, cold": lambda o: (PowerSGDState(1, warm_start=False, start_after=2), compression_hook),
    "deep gradient": lambda o: (DeepGradientState(o, ratio=0.1), deep_gradient_hook),
}  # fmt: skip
ADAM = {
    "sign": lambda: None,
    "top k": lambda: TopK(0.1),
    "8 bits by chance": lambda: IntegerQuantizer(8, stochastic=True),
    "threshold that adapts": lambda: AdaptiveThreshold(0.1),
}


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def batch(step):
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(7 * step + dist.get_rank()))


def trained(wrap, make, steps, saved_at=None):
    """The weights at the end, and the state; saved_at: the step before which all is saved and begun anew."""

    def new():
        model = wrap(Model(), bucket_cap_mb=0.002)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        state, hook = make(optimizer)
        model.register_comm_hook(state, hook)
        return model, optimizer, state

    model, optimizer, state = new()
    for step in range(steps):
        if step == saved_at:
            saved = through_a_file([one.state_dict() for one in (model, optimizer, state)])
            model, optimizer, state = new()
            for one, of in zip((model, optimizer, state), saved, strict=True):
                one.load_state_dict(of)
            assert equal(state.state_dict(), saved[2]), "before its first step, too"
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
    return [w.detach().clone() for w in model.parameters()], state.state_dict()


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return set(a) == set(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def resumed(wrap):
    found = {}
    for name, make in STATES.items():
        whole, state = trained(wrap, make, 6)
        halves, resumed_state = trained(wrap, make, 6, saved_at=3)
        found[name] = equal(whole, halves), equal(state, resumed_state)
    return found


def torchs(module, bucket_cap_mb):
    """With the same buckets in the first step and in later ones: they are built anew where all parameters are used."""
    return TorchDDP(module, bucket_cap_mb=bucket_cap_mb, find_unused_parameters=True)


@pytest.mark.parametrize("wrap", [DistributedDataParallel, torchs], ids=["ours", "PyTorch's"])
def test_gone_on_with_it_is_the_same_to_the_bit(wrap):
    for found in launch(resumed, 2, wrap, timeout=240.0):
        assert found == dict.fromkeys(STATES, (True, True))


def adam(make, dtype, steps, saved_at=None):
    def new():
        model = Model().to(dtype)
        return model, OneBitAdam(model.parameters(), lr=0.01, warmup_steps=2, compressor=make())

    model, optimizer = new()
    for step in range(steps):
        if step == saved_at:
            saved = through_a_file([model.state_dict(), optimizer.state_dict()])
            model, optimizer = new()
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        optimizer.zero_grad()
        model(batch(step).to(dtype)).square().mean().backward()
        optimizer.step()
    return [w.detach().clone() for w in model.parameters()]


def adams():
    found = {}
    for name, make in ADAM.items():
        for dtype in (torch.float32, torch.bfloat16):
            whole = adam(make, dtype, 7)
            found[name, dtype] = [equal(whole, adam(make, dtype, 7, saved_at=at)) for at in (1, 4)]
    return found


def test_one_bit_adam_too_also_of_weights_in_bfloat16():
    for found in launch(adams, 2, timeout=240.0):
        assert all(same == [True, True] for same in found.values()), found


# --- what is refused ----------------------------------------------------------------------------------------------


def states_of(p):
    """What rank 0 of so many has saved, after two steps; with one process the hook is called all the same."""
    saved = {}
    for name in ("sign", "random k", "rows", "PowerSGD", "deep gradient", "TernGrad, shared"):
        saved[name] = trained(DistributedDataParallel, STATES[name], 2)[1]
    model = Model()
    optimizer = OneBitAdam(model.parameters(), warmup_steps=1, compressor=TopK(0.5))
    for step in range(2):
        model(batch(step)).square().mean().backward()
        optimizer.step()
    return saved, optimizer.state_dict()


def refusals(saved, of_adam):
    """Of what two ranks have saved, on three."""
    rank = dist.get_rank()
    words = f"is that of rank 0 of 2, and this is rank {rank} of 3"
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for name, of in saved.items():
        with pytest.raises(ValueError, match=words):
            STATES[name](optimizer)[0].load_state_dict(of)
    adam_ = OneBitAdam(model.parameters(), warmup_steps=1, compressor=TopK(0.5))
    adam_.load_state_dict(of_adam)
    model(batch(0)).square().mean().backward()
    with pytest.raises(
        ValueError, match=words + r".*call reset_error_feedback\(\) after loading it"
    ):
        adam_.step()
    adam_.reset_error_feedback()
    adam_.step()
    # Another model, another compressor, another rank of matrices: here with a state of this rank and world size.
    me = {"rank": rank, "world_size": 3}
    for name in ("sign", "rows", "PowerSGD"):
        other = DistributedDataParallel(Model(width=25), bucket_cap_mb=0.002)
        state, hook = STATES[name](optimizer)
        other.register_comm_hook(state, hook)
        state.load_state_dict({**saved[name], **me})
        with pytest.raises(
            ValueError, match=r"is of 9 parameters of shapes .*\(12, 24\).*\(12, 25\)"
        ):
            other(batch(0)).square().mean().backward()
    for make, of, words in (
        (lambda: CompressionState(TopK(0.1)), "random k", "TopK remembers nothing, and the saved state has ['random']"),
        (lambda: CompressionState(SketchedTopK()), "sign", "the saved state has a generator of []"),
        (lambda: CompressionState(QSGD(12)), "sign", "the saved state has [], and a method that draws has seed"),
        (lambda: CompressionState(AdaptiveThreshold()), "sign", "the saved state has [], and AdaptiveThreshold has"),
        (lambda: PowerSGDState(3), "PowerSGD", "the saved state has Qs of 2 columns, and this one's rank is 3"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=re.escape(words)):
            make().load_state_dict({**saved[of], **me})
    narrow = Model(width=5)
    with pytest.raises(ValueError, match=re.escape("(24, 8), (24,),")):
        OneBitAdam(narrow.parameters(), warmup_steps=1).load_state_dict(of_adam)
    # A model that is known already is compared at once.
    state = STATES["sign"](optimizer)[0]
    other = DistributedDataParallel(Model(width=25), bucket_cap_mb=0.002)
    other.register_comm_hook(state, compression_hook)
    other(batch(0)).square().mean().backward()
    with pytest.raises(ValueError, match="it belongs to another model"):
        state.load_state_dict({**saved["sign"], **me})


def test_the_state_of_another_rank_model_or_method_is_refused_with_numbers():
    saved, of_adam = launch(states_of, 2, 2)[0]
    launch(refusals, 3, saved, of_adam)


class Interleaved(nn.Module):
    """Registered in another order than used: the first step after loading has other buckets than the last before."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.third, self.first, self.second = nn.Linear(16, 4), nn.Linear(8, 16), nn.Linear(16, 16)

    def forward(self, x):
        return self.third(self.second(self.first(x).relu()).relu())


def other_buckets():
    """What was left out of ranks and of sums before saving is all of what is handed over in the first step after."""
    first = CompressionState(IntegerQuantizer(2, block=64))
    p, rank = dist.get_world_size(), dist.get_rank()

    def step(state, module, number):
        wrapped = DistributedDataParallel(module, bucket_cap_mb=0.001)
        wrapped.register_comm_hook(state, compression_hook)
        for i in range(number):
            wrapped.zero_grad()
            wrapped(batch(i)).square().mean().backward()
        return wrapped

    one = step(first, Interleaved(), 3)
    saved = through_a_file(first.state_dict())
    kept = {w: first.left_out[w] / p for w in one.module.parameters()}
    for key, part in first.left_out_of_parts.items():
        whole = torch.zeros(len(part) * p)
        whole[rank * len(part) : (rank + 1) * len(part)] = part
        for i in key:
            w = first._model.order[i]
            values, whole = whole[: w.numel()], whole[w.numel() :]
            kept[w] = kept[w] + values
    due = torch.cat([kept[w] for w in one.module.parameters()])
    dist.all_reduce(due)
    # A method that leaves out nothing sends all of it, beside the gradients.
    second = CompressionState(Identity())
    second.load_state_dict({**saved, "compressor": {}})
    two = step(second, Interleaved(), 1)
    plain = DistributedDataParallel(Interleaved())
    plain(batch(0)).square().mean().backward()
    came, alone = (torch.cat([w.grad.flatten() for w in m.parameters()]) for m in (two, plain))
    different = set(first.left_out_of_parts) != set(second.left_out_of_parts)
    return different, float((came - alone - due).abs().max()), float(due.abs().max())


def test_parts_of_buckets_that_are_no_more_are_handed_over_also_after_loading():
    for different, off, size in launch(other_buckets, 2):
        assert different and off < 1e-6 and size > 1e-3
