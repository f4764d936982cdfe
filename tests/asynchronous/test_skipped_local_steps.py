"""A GradScaler that finds inf on one rank leaves out that rank's step, and no meeting: nobody waits, none is behind."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.asynchronous import DiLoCo, ElasticAveraging, GossipSGD, LocalSGD, mixing
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.memory import GradScaler

STEPS = 5
METHODS = {
    "local SGD": lambda m, o: LocalSGD(m, o, 2),
    "post-local SGD": lambda m, o: LocalSGD(m, o, 2, synchronous_steps=2),
    "elastic": lambda m, o: ElasticAveraging(m, o, 2),
    "gossip": lambda m, o: GossipSGD(m, o, mixing.ring(dist.get_world_size())),
    "gossip in turn": lambda m, o: GossipSGD(m, o, mixing.ring(dist.get_world_size()), overlap=False),
    "DiLoCo": lambda m, o: DiLoCo(m, o, 2),
}  # fmt: skip
SCALERS = {"PyTorch's": torch.amp.GradScaler, "ours": GradScaler}


def trained(wrap, scaler=None, unscale=False, left_out=(), everywhere=()):
    """The weight after each step. left_out: steps in which rank 1's gradient is inf; without a scaler, zero.

    everywhere: steps in which every rank's counts as zero, as averaged gradients make it
    """
    rank = dist.get_rank()
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 1.0)
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.125))
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        factor = 1.0 + rank + step
        if rank == 1 and step in left_out:
            factor = 0.0 if scaler is None else math.inf
        if scaler is None and step in everywhere:
            factor = 0.0
        loss = (optimizer.model(torch.ones(1, 1).double()) * factor).sum()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        found.append(model.weight.item())
    return found, optimizer.steps


def with_and_without():
    found = {}
    for method, wrap in METHODS.items():
        for name, make in SCALERS.items():
            for unscale in (False, True):
                scaler = make("cpu", init_scale=4.0)
                mine = trained(wrap, scaler, unscale, left_out=(0, 3))
                # Averaged gradients with an inf in them are inf on every rank.
                everywhere = (0,) if method.startswith("post") else ()
                found[method, name, unscale] = (
                    mine,
                    trained(wrap, left_out=(0, 3), everywhere=everywhere),
                    scaler.get_scale(),
                )
    return found


def test_a_step_left_out_on_one_rank_is_a_zero_gradient_there():
    run = launch(with_and_without, 3, timeout=60)
    for rank, found in enumerate(run):
        for case, ((mine, steps), (reference, _), scale) in found.items():
            assert steps == STEPS, case
            assert mine == pytest.approx(reference, abs=1e-12), (case, rank)
            expected = 1.0 if rank == 1 else 4.0
            assert scale in (expected, 2.0) if "post" in case[0] else scale == expected, case


def in_ddp():
    """The synchronous steps' averages are made scaled: they are inf on all ranks, and all leave the step out."""
    wrap = lambda m, o: LocalSGD(DistributedDataParallel(m), o, 2, synchronous_steps=2)  # noqa: E731
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    return trained(wrap, scaler, left_out=(0, 3)), trained(wrap, left_out=(0, 3), everywhere=(0,))


def test_with_ddp_for_the_synchronous_steps():
    for (mine, steps), (reference, _) in launch(in_ddp, 2, timeout=60):
        assert steps == STEPS and mine == pytest.approx(reference, abs=1e-12)


def adam():
    """Moments and step count of a rank that leaves out its first step."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = LocalSGD(model, torch.optim.Adam(model.parameters(), lr=0.1), 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(2):
        optimizer.zero_grad()
        factor = math.inf if dist.get_rank() == 1 and step == 0 else 2.0
        scaler.scale(optimizer.model(torch.ones(1, 1)) * factor).sum().backward()
        scaler.step(optimizer)
        scaler.update()
    state = optimizer.state[model.weight]
    return state["step"].item(), state["exp_avg"].item()


def test_the_inner_optimizer_knows_of_no_step_that_was_left_out():
    run = launch(adam, 2, timeout=60)
    assert run[0] == (2, pytest.approx(0.38)) and run[1] == (1, pytest.approx(0.2))
