"""fully_shard by hand: equal to one process and to PyTorch's, parameter by parameter, in every way of using it."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.utils.checkpoint import checkpoint

from dtcourse import launch
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.sharding import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    full_gradients,
    full_state_dict,
    fully_shard,
)
from dtcourse.verify import CASES, NotEqual, compare, on_ranks, one_process


def one_unit(model):
    return fully_shard(model)


def each_layer(model, **options):
    """A unit a layer, as PyTorch's users do; the embedding of "tied" and its output layer stay with the root."""
    for layer in model.children():
        if not isinstance(layer, nn.Embedding) and not getattr(layer, "bias", None) is None:
            fully_shard(layer, **options)
    return fully_shard(model, **options)


WRAPPERS = {
    "one unit": one_unit,
    "a unit a layer": each_layer,
    "kept from forward to backward": lambda m: each_layer(m, reshard_after_forward=False),
    "root kept": lambda m: each_layer(m, reshard_after_forward=None),
    "offloaded": lambda m: each_layer(m, offload_policy=CPUOffloadPolicy()),
}


def as_torch(model):
    """PyTorch's own on the same units; it takes each rank's values as they are, so rank 0's are sent round first."""
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    for layer in model.children():
        if not isinstance(layer, nn.Embedding) and not getattr(layer, "bias", None) is None:
            torch_fully_shard(layer)
    return torch_fully_shard(model)


def torch_gradients(model):
    return {
        n: None if p.grad is None else p.grad.full_tensor() for n, p in model.named_parameters()
    }


def torch_on_ranks(case, micro_batches, samples):
    """PyTorch's has no no_sync(): it averages every micro-batch, which is the same sum."""
    return on_ranks(
        as_torch, CASES[case], micro_batches=micro_batches, samples=samples, read=torch_gradients
    )


def train_all(micro_batches, samples, cases=tuple(CASES), wrappers=tuple(WRAPPERS), steps=3):
    """Every wrapper on every case, and PyTorch's, in one launch: a launch a combination would take a minute."""
    out = {}
    for case in cases:
        for name in wrappers:
            out[case, name] = on_ranks(
                WRAPPERS[name], CASES[case], steps, micro_batches, samples, read=full_gradients
            ).gradients
        out[case, "PyTorch's"] = torch_on_ranks(case, micro_batches, samples).gradients
    return out


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("micro_batches", [1, 2, 8])
def test_gradients_equal_one_process_and_pytorchs(world_size, micro_batches):
    samples = 96 if micro_batches == 8 else 24
    wrappers = list(WRAPPERS) if micro_batches == 2 else ["one unit", "a unit a layer"]
    run = launch(train_all, world_size, micro_batches, samples, wrappers=wrappers)
    for case in CASES:
        truth = one_process(CASES[case], samples=samples).gradients
        for name in [*wrappers, "PyTorch's"]:
            for step, (got, expected) in enumerate(zip(run[0][case, name], truth, strict=True)):
                compare(got, expected, what=f"{case}, {name}, step {step}: gradient")
    assert all(
        run[world_size - 1][case, name][2][n] is None
        or torch.equal(run[world_size - 1][case, name][2][n], g)
        for (case, name), steps in run[0].items()
        for n, g in steps[2].items()
        if g is not None
    ), "every rank gathers the same"
