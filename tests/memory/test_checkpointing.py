"""Activation checkpointing by hand: equal to torch.utils.checkpoint in values, gradients, operations and bytes."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint as theirs
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dtcourse import launch
from dtcourse.data_parallel import DistributedDataParallel, average_gradients
from dtcourse.memory import (
    MATMULS,
    CheckpointError,
    checkpoint,
    checkpoint_sequential,
    square_root_segments,
)
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.profiling.memory_tracker import MemoryTracker
from dtcourse.verify import CASES, compare, gradients_of, on_ranks, one_process

aten = torch.ops.aten
pytorch = partial(theirs.checkpoint, use_reentrant=False)


def plain(function, *args, **kwargs):
    return function(*args, **kwargs)


def block(width=12):
    """A block with matrix products, dropout, and a layer used twice."""
    torch.manual_seed(0)
    shared = nn.Linear(width, width)
    return nn.Sequential(
        nn.LayerNorm(width), shared, nn.GELU(), nn.Dropout(0.3), shared, nn.Tanh(), nn.Dropout(0.3)
    )


class CountOperations(TorchDispatchMode):
    """How often each operation ran. Detach is the hooks' own, a different number of times in ours and PyTorch's."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op is not aten.detach.default:
            self.counts[str(op)] += 1
        return op(*args, **(kwargs or {}))


def run(call, model=None, x=None):
    """Output, gradients of input and parameters, and the operations of forward plus backward."""
    model = model or block()
    x = torch.randn(5, 12, generator=torch.Generator().manual_seed(3)) if x is None else x
    x = x.clone().requires_grad_()
    torch.manual_seed(7)
    with CountOperations() as counter:
        output = call(model, x)
        output.square().sum().backward()
    after = torch.rand(1)  # where the random state stands now
    return output.detach(), {"input": x.grad, **gradients_of(model)}, counter.counts, after


NESTS = {
    "whole": lambda c, m, x: c(m, x),
    "two regions": lambda c, m, x: c(m[4:], c(m[:4], x)),
    "half": lambda c, m, x: m[4:](c(m[:4], x)),
    "nested": lambda c, m, x: c(lambda v: c(m[4:], c(m[:4], v)), x),
    "nested thrice": lambda c, m, x: c(lambda v: m[6:](c(lambda w: c(m[3:6], m[:3](w)), v)), x),
}


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
def test_values_gradients_and_recomputed_operations_equal_pytorchs(nest):
    truth = run(lambda m, x: nest(plain, m, x))
    mine = run(lambda m, x: nest(checkpoint, m, x))
    torchs = run(lambda m, x: nest(pytorch, m, x))
    assert torch.equal(mine[0], truth[0])
    compare(mine[1], truth[1], tolerance=0.0)
    assert mine[2] == torchs[2]
    assert sum(mine[2].values()) > sum(truth[2].values()), "something was computed twice"
    assert torch.equal(mine[3], truth[3]), "backward leaves the random state where it was"


POLICIES = {
    "matmuls": list(MATMULS),
    "gelu": [aten.gelu.default],
    "several outputs": [aten.native_layer_norm.default, aten.native_dropout.default],
    "nothing": [],
    "function": lambda ctx, op, *args, **kwargs: (
        theirs.CheckpointPolicy.MUST_SAVE
        if op is aten.addmm.default
        else theirs.CheckpointPolicy.PREFER_RECOMPUTE
    ),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("nest", ["whole", "two regions", "nested"])
def test_selective_policies_equal_pytorchs(policy, nest):
    contexts = partial(theirs.create_selective_checkpoint_contexts, policy)
    truth = run(lambda m, x: NESTS[nest](plain, m, x))
    mine = run(lambda m, x: NESTS[nest](partial(checkpoint, policy=policy), m, x))
    torchs = run(lambda m, x: NESTS[nest](partial(pytorch, context_fn=contexts), m, x))
    compare(mine[1], truth[1], tolerance=0.0)
    assert mine[2] == torchs[2]


def test_kept_matmuls_are_not_computed_again():
    forward_only = run(lambda m, x: m(x))[2]["aten.addmm.default"]
    everything = run(lambda m, x: checkpoint(m, x))[2]["aten.addmm.default"]
    selective = run(lambda m, x: checkpoint(m, x, policy=MATMULS))[2]["aten.addmm.default"]
    assert (forward_only, everything, selective) == (2, 4, 2)


def kept_bytes(call):
    """Bytes that forward leaves for backward, counted at birth and death of every storage."""
    model, x = block(64), torch.randn(32, 64, requires_grad=True)
    with MemoryTracker(model, inputs=[x]) as tracker:
        call(model, x).sum().backward()
    return tracker.activation_bytes


def test_kept_bytes_equal_pytorchs_and_the_formula():
    one = 32 * 64 * 4  # bytes of a float32 activation of this block
    statistics = 2 * 32 * 4  # LayerNorm's mean and 1 / deviation
    ends = 2 * 4  # the loss, and the gradient that backward starts with
    # Saved: by LayerNorm its statistics, by the two linears and GELU their inputs, by tanh its output, by dropout its
    # noise, twice. LayerNorm's own input is the batch, which is there anyway.
    assert kept_bytes(lambda m, x: m(x)) == statistics + 6 * one + ends
    for nest, activations in {"whole": 0, "two regions": 1, "half": 3, "nested": 0}.items():
        mine = kept_bytes(lambda m, x: NESTS[nest](checkpoint, m, x))  # noqa: B023 -- called at once
        torchs = kept_bytes(lambda m, x: NESTS[nest](pytorch, m, x))  # noqa: B023
        assert mine == torchs == activations * one + ends, nest
    contexts = partial(theirs.create_selective_checkpoint_contexts, list(MATMULS))
    mine = kept_bytes(lambda m, x: checkpoint(m, x, policy=MATMULS))
    assert mine == kept_bytes(lambda m, x: pytorch(m, x, context_fn=contexts)) == 2 * one + ends


@settings(max_examples=25)
@given(st.integers(1, 9), st.data())
def test_sequential_equals_pytorchs_for_all_segments(layers, data):
    segments = data.draw(st.integers(1, layers))
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(layers)))
    x = torch.randn(2, 3)
    truth = run(lambda m, x: m(x), model, x)
    model.zero_grad()
    mine = run(lambda m, x: checkpoint_sequential(m, segments, x), model, x)
    model.zero_grad()
    torchs = run(
        lambda m, x: theirs.checkpoint_sequential(m, segments, x, use_reentrant=False), model, x
    )
    compare(mine[1], truth[1], tolerance=0.0)
    assert mine[2] == torchs[2]


def test_the_square_root_rule_keeps_least():
    """Sixteen equal layers: of all numbers of segments, the peak is least at four."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(48, 48), nn.Sigmoid()) for _ in range(16)))
    peaks = {}
    for segments in (1, 2, 4, 8, 16):
        model.zero_grad()
        x = torch.randn(200, 48)
        with MemoryTracker(model, inputs=[x]) as tracker:
            checkpoint_sequential(model, segments, x).sum().backward()
        peaks[segments] = tracker.peak.bytes
    assert min(peaks, key=peaks.get) == 4 == square_root_segments(16)
    x = torch.randn(200, 48)
    by_rule = checkpoint_sequential(model, None, x)
    assert torch.equal(by_rule, model(x))


def test_wrong_numbers_of_segments():
    with pytest.raises(ValueError, match="3 layers can be 1 to 3 segments; got 4"):
        checkpoint_sequential([torch.sin] * 3, 4, torch.ones(1))
    with pytest.raises(ValueError, match="at least one layer; got 0"):
        square_root_segments(0)


def test_keywords_nested_inputs_and_outputs():
    w = torch.randn(3, 3, requires_grad=True)

    def function(x, *, scale, extra, flag):
        return {"y": (x @ w) * scale, "z": [extra["bias"].sin(), flag]}

    def gradients(call):
        x, scale = torch.ones(2, 3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
        bias = torch.ones(3, requires_grad=True)
        w.grad = None
        out = call(function, x, scale=scale, extra={"bias": bias}, flag="as it is")
        assert out["z"][1] == "as it is"
        (out["y"].sum() + out["z"][0].sum()).backward()
        return {"x": x.grad, "scale": scale.grad, "bias": bias.grad, "w": w.grad}

    compare(gradients(checkpoint), gradients(plain), tolerance=0.0)


def test_backward_twice_and_in_parts():
    x = torch.randn(4, requires_grad=True)
    runs = []

    def function(v):
        runs.append(1)
        return (v.sin() * v.cos()).exp()

    for policy in (None, [aten.exp.default]):
        y = checkpoint(function, x, policy=policy)
        first = torch.autograd.grad(y.sum(), x, retain_graph=True)
        second = torch.autograd.grad(y.sum(), x)
        assert torch.equal(first[0], second[0])
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(y.sum(), x)
    assert len(runs) == 6, "once forward, and once for each of two backwards"


def test_backward_inside_the_region():
    """The gradient of a gradient, computed in the function itself (physics-informed losses do this)."""

    def function(v):
        y = v.sin() * v
        (slope,) = torch.autograd.grad(y.sum(), v, create_graph=True)
        return slope.square()

    def gradient(call):
        x = torch.linspace(-1, 1, 5, requires_grad=True)
        call(function, x).sum().backward()
        return x.grad

    assert torch.equal(gradient(checkpoint), gradient(plain))


def test_without_gradients_nothing_happens():
    with torch.no_grad():
        y = checkpoint(torch.sin, torch.ones(2, requires_grad=True))
    assert not y.requires_grad
    y = checkpoint(torch.sin, torch.ones(2))
    assert not y.requires_grad


def test_random_state_can_be_let_go():
    x = torch.ones(1000, requires_grad=True)
    for keep, equal in ((True, True), (False, False)):
        torch.manual_seed(0)
        y = checkpoint(lambda v: nn.functional.dropout(v * v), x, preserve_rng_state=keep)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(y != 0, gradient != 0) is equal


def test_autocast_is_as_it_was():
    model, x = block(), torch.randn(5, 12)

    def gradients(call):
        model.zero_grad()
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = call(model, x)
        y.float().sum().backward()
        return gradients_of(model)

    compare(gradients(checkpoint), gradients(plain), tolerance=0.0)


def test_memory_is_given_back():
    """No cycle keeps a region alive: everything dies with the graph, without the garbage collector."""
    import gc
    import weakref

    gc.disable()
    try:
        for policy, backward in ((None, True), (None, False), (MATMULS, True), (MATMULS, False)):
            x = torch.randn(4, 12, requires_grad=True)
            inner, model = x * 1.0, block()
            y = checkpoint(model, inner, policy=policy)
            watched = weakref.ref(inner), weakref.ref(model)  # the region holds both
            del inner, model
            assert all(w() is not None for w in watched)
            if backward:
                y.sum().backward()
            del y
            assert [w() for w in watched] == [None, None]
    finally:
        gc.enable()


# --- mistakes ---------------------------------------------------------------------------------------------------


def test_a_function_that_changes_its_mind():
    sizes = iter([4, 5, 4, 4, 3])
    x = torch.ones(6, requires_grad=True)

    def shapes(v):
        return (v[: next(sizes)] * 2).sin().sum()

    with pytest.raises(
        CheckpointError,
        match=r"saved tensor 0 .* was \[4\] float32 on cpu in forward and is \[5\] float32 on cpu",
    ):
        checkpoint(shapes, x).backward()
    calls = []

    def fewer(v):
        calls.append(1)
        return v.sin().cos() if len(calls) == 1 else v.sin()

    with pytest.raises(CheckpointError, match="saved 2 tensors in forward and 1 in the recompute"):
        checkpoint(fewer, x).sum().backward()


def test_a_policy_meets_other_operations_on_recompute():
    calls = []

    def function(v):
        calls.append(1)
        for _ in calls:
            v.detach() @ v.detach()
        return v.sin()

    x = torch.ones(2, 2, requires_grad=True)
    with pytest.raises(
        CheckpointError, match=r"aten.mm.default for the 2. time; forward called it 1"
    ):
        checkpoint(function, x, policy=MATMULS).sum().backward()


def test_kept_outputs_must_not_be_changed():
    def function(v):
        h = v @ v
        h.relu_()
        return h.square()

    x = torch.ones(2, 2, requires_grad=True)
    with pytest.raises(
        CheckpointError, match=r"aten.mm.default, which the policy keeps, was changed"
    ):
        checkpoint(function, x, policy=MATMULS).sum().backward()
    checkpoint(function, x, policy=[aten.pow.Tensor_Scalar]).sum().backward()


def test_policies_that_are_none():
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match=r"got <OpOverloadPacket.*write aten.mm.default"):
        checkpoint(torch.sin, x, policy=[aten.mm])
    with pytest.raises(ValueError, match="got <built-in method sin"):
        checkpoint(torch.sin, x, policy=[torch.sin])
    with pytest.raises(ValueError, match="offload_activations"):
        offload = theirs.CheckpointPolicy.MUST_CPU_OFFLOAD
        checkpoint(torch.sin, x, policy=lambda ctx, op, *args, **kwargs: offload)


# --- a real model, and ranks ------------------------------------------------------------------------------------


def test_a_transformer_with_dropout_and_its_attention_alone():
    """Whole blocks, and only the core of attention, which is what Korthikanti et al. recompute."""
    config = TransformerConfig(
        vocab=31, d_model=32, n_layers=3, n_heads=4, max_length=24, dropout=0.1
    )
    torch.manual_seed(0)
    model = Transformer(config)
    tokens_BS = torch.randint(31, (2, 24))

    def step(call, parts):
        originals = {part: part.forward for part in parts}
        for part, forward in originals.items():
            part.forward = partial(call, forward)
        model.zero_grad()
        torch.manual_seed(5)
        with MemoryTracker(model, inputs=[tokens_BS]) as tracker:
            logits_BSV = model(tokens_BS)
            nn.functional.cross_entropy(logits_BSV.flatten(0, 1), tokens_BS.flatten()).backward()
        for part in parts:
            del part.forward
        return gradients_of(model), tracker.activation_bytes

    truth, everything = step(plain, [])
    kept = {}
    cores = [b.attention.core for b in model.blocks]
    for name, parts in {"blocks": list(model.blocks), "cores": cores}.items():
        mine, kept[name] = step(checkpoint, parts)
        _, torchs = step(pytorch, parts)
        compare(mine, truth, tolerance=0.0)
        assert kept[name] == torchs
    assert kept["blocks"] < kept["cores"] < everything


class Checkpointed(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return checkpoint(self.model, x)


def test_under_data_parallelism():
    """Recompute happens in backward, while the gradients' hooks fire: averages must be as without it."""

    def step():
        def wrap(model):
            return DistributedDataParallel(Checkpointed(model), bucket_cap_mb=0.0001)

        ddp = {name: on_ranks(wrap, CASES[name]).gradients for name in ("mlp", "tied", "frozen")}
        later = on_ranks(Checkpointed, CASES["mlp"], after_backward=lambda m: average_gradients(m))
        dist.barrier()
        return ddp, later.losses

    for ddp, _ in launch(step, 2):
        for name, gradients in ddp.items():
            for got, expected in zip(gradients, one_process(CASES[name]).gradients, strict=True):
                compare(got, expected)
