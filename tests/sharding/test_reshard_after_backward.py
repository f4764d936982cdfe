"""Parameters that stay whole from one micro-batch to the next: PyTorch's gradients, gathered in the first one alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard as torch_fully_shard

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.parameters.whole import full_gradients
from dtcourse.sharding import fully_shard

MICRO_BATCHES, STEPS, WIDTH = 3, 2, 6


def build(shard):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))).double()
    for block in model[:2]:
        shard(block)
    return shard(model)


def train(kind, keeps):
    """Each step's gradients, whole, and how often it gathered; the parameters' bytes that stay whole after it."""
    model = build({"ours": fully_shard, "torch": torch_fully_shard}[kind])
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
    make = torch.Generator().manual_seed(torch.distributed.get_rank())
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with traffic.counting() as counted:
            for i in range(MICRO_BATCHES):
                x = torch.randn(4, WIDTH, generator=make, dtype=torch.double)
                loss = model(x).square().mean()
                last = i == MICRO_BATCHES - 1
                model.set_requires_gradient_sync(last)
                if keeps:
                    model.set_reshard_after_backward(last)
                loss.backward()
        if kind == "ours":
            gradients = full_gradients(model)
            assert all(unit.state == "sharded" for unit in (m._fsdp for m in [model, *model[:2]]))
        else:
            gradients = {n: p.grad.full_tensor() for n, p in model.named_parameters()}
        optimizer.step()
        gathers, sums = (counted.calls(operation=o) for o in ("all_gather", "reduce_scatter"))
        found.append((gradients, gathers, sums))
    return found


@pytest.mark.parametrize("keeps", [False, True])
def test_gradients_are_pytorchs_and_parameters_are_gathered_as_often_as_is_said(keeps):
    ours, torchs = (launch(train, 2, kind, keeps, backend="ring") for kind in ("ours", "torch"))
    for mine, theirs in zip(ours, torchs, strict=True):
        for (gradients, gathers, sums), (right, _, _) in zip(mine, theirs, strict=True):
            assert gradients.keys() == right.keys()
            for name, gradient in gradients.items():
                torch.testing.assert_close(gradient, right[name], rtol=1e-12, atol=1e-14)
            assert sums == 3
            # Two inner units forward and backward, and the outermost once: per micro-batch, or in the first alone.
            assert gathers == 5 * (1 if keeps else MICRO_BATCHES)


def stale():
    model = build(fully_shard)
    model.set_reshard_after_backward(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.ones(2, WIDTH, dtype=torch.double)
    model(x).sum().backward()
    optimizer.step()
    after = model(x)
    model.set_reshard_after_backward(True)
    model.reshard()
    return after, model(x)


def test_what_an_optimizer_has_changed_is_gathered_anew():
    for kept, anew in launch(stale, 2):
        torch.testing.assert_close(kept, anew, rtol=0, atol=0)
