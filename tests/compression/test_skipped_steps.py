"""The degenerate case in double, and what is left out across a step that is skipped: a silent break, and its repair."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import launch
from dtcourse.compression import (
    CompressionState,
    Identity,
    IntegerQuantizer,
    OneBitSGD,
    ScaledSign,
    Threshold,
    TopK,
    TopRows,
    compression_hook,
    deep_gradient_hook,
)
from dtcourse.compression.compressor import ALL_GATHER, ALL_GATHERV, ALL_REDUCE, REDUCE_SCATTER
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.verify import gradients_of


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)
    )


def trained(wrap, state, dtype, steps=4, skipped=None):
    """The gradients of each step. In the `skipped` one rank 0's are infinite, and no step is taken."""
    rank, p = dist.get_rank(), dist.get_world_size()
    wrapped = wrap(model().to(dtype), bucket_cap_mb=0.001)
    if state is not None:
        wrapped.register_comm_hook(state, compression_hook)
    optimizer, found = torch.optim.SGD(wrapped.parameters(), lr=0.1), []
    for step in range(steps):
        optimizer.zero_grad()
        make = torch.Generator().manual_seed(step)
        inputs = torch.randn(12, 8, generator=make, dtype=torch.double).to(dtype).chunk(p)[rank]
        loss = wrapped(inputs).square().mean()
        (loss * math.inf if step == skipped and rank == 0 else loss).backward()
        found.append(gradients_of(wrapped.module))
        if all(g.isfinite().all() for g in found[-1].values()):
            optimizer.step()
        else:
            assert step == skipped
    return found


def farthest(got, right):
    return max(
        float((a[name] - b[name]).abs().max())
        for a, b in zip(got, right, strict=True)
        for name in b
    )


def in_double():
    plain = trained(DistributedDataParallel, None, torch.double)
    methods = [
        Identity(way, takes=torch.double)
        for way in (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_GATHERV)
    ]
    found = {}
    for method in (*methods, TopK(1.0, takes=torch.double)):
        for wrap in (DistributedDataParallel, TorchDDP):
            for feedback in (True, False):
                state = CompressionState(method, error_feedback=feedback)
                error = farthest(trained(wrap, state, torch.double), plain)
                found[type(method).__name__, method.scheme, wrap.__module__, feedback] = error
    return found


def test_all_of_it_is_ddp_to_1e_12_in_double():
    for found in launch(in_double, 3):
        assert len(found) == 20 and max(found.values()) <= 1e-12, found


METHODS = {
    "sign": lambda: CompressionState(ScaledSign()),
    "1-bit SGD": lambda: CompressionState(OneBitSGD(64)),
    "2 bits": lambda: CompressionState(IntegerQuantizer(2, block=64)),
    "top k": lambda: CompressionState(TopK(0.05)),
    "threshold": lambda: CompressionState(Threshold(0.02)),
    "rows": lambda: TopRows(0.1),
}


def skipping():
    found = {}
    for name, make in METHODS.items():
        state = make()
        gradients = trained(DistributedDataParallel, state, torch.float, skipped=2)
        finite = [all(g.isfinite().all() for g in of.values()) for of in gradients]
        kept = all(left.isfinite().all() for left in state.left_out.values())
        state.reset()
        found[name] = finite, kept, len(state.left_out)
    return found


def test_an_infinite_gradient_is_seen_in_its_step_and_in_no_later_one():
    for found in launch(skipping, 2):
        for name, (finite, kept, after_reset) in found.items():
            assert finite == [True, True, False, True], name
            assert kept and after_reset == 0, name


def rescaled():
    """A loss scale of 1024 falls to 1, as a GradScaler's does: what was left out before is in the old unit."""
    found = {}
    plain = gradients_at(DistributedDataParallel(model()), 1.0)
    for name in ("kept", "reset"):
        state, wrapped = CompressionState(TopK(0.05)), DistributedDataParallel(model())
        wrapped.register_comm_hook(state, compression_hook)
        gradients_at(wrapped, 1024.0)
        if name == "reset":
            state.reset()
        gradients = gradients_at(wrapped, 1.0)
        largest = max(float(g.abs().max()) for g in gradients.values())
        found[name] = largest / max(float(g.abs().max()) for g in plain.values())
    return found


def gradients_at(wrapped, scale):
    """Of one batch; no step is taken."""
    rank, p = dist.get_rank(), dist.get_world_size()
    wrapped.zero_grad()
    make = torch.Generator().manual_seed(0)
    inputs = torch.randn(12, 8, generator=make, dtype=torch.double).float().chunk(p)[rank]
    (wrapped(inputs).square().mean() * scale).backward()
    return gradients_of(wrapped.module)


def test_what_was_left_out_at_another_loss_scale_comes_back_a_thousandfold_unless_reset():
    for found in launch(rescaled, 2):
        assert found["kept"] > 50, "the silent break"
        assert 0.3 < found["reset"] < 3


def wrong_states():
    said = []
    for state, hook in (
        (TopK(0.1), compression_hook),
        (None, compression_hook),
        (CompressionState(TopK(0.1)), deep_gradient_hook),
    ):
        for wrap in (DistributedDataParallel, TorchDDP):
            wrapped = wrap(model())
            wrapped.register_comm_hook(state, hook)
            try:
                wrapped(torch.ones(2, 8)).sum().backward()
            except ValueError as error:
                said.append(str(error))
    for compressor in (TopK, compression_hook, TopRows(0.1)):
        try:
            CompressionState(compressor)
        except ValueError as error:
            said.append(str(error))
    return said


def test_a_hook_registered_with_what_is_no_state_says_what_to_register():
    for said in launch(wrong_states, 2):
        assert len(said) == 9, said
        assert all("CompressionState(TopK(0.01))" in one and "got TopK" in one for one in said[:2])
        assert all("got None" in one for one in said[2:4])
        assert all(
            "DeepGradientState(optimizer)" in one and "got CompressionState" in one
            for one in said[4:6]
        )
        assert all("takes a compressor, such as TopK(0.01); got" in one for one in said[6:])
