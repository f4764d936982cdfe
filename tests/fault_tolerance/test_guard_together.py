"""The guard with what has parts of a model on its ranks: whoever sees it, all leave the step out, to the bit."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse import launch, nested
from dtcourse.fault_tolerance.fingerprints import digest
from dtcourse.fault_tolerance.guard import Copies, LossGuard, Spikes, States, Tensors
from dtcourse.parameters.placement import local

STEPS, BAD, SPIKE = 15, 3, 12
SEEN = [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 13, 14]  # back to step 10, after which came batch 11
RANKS = 2


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)]
    return nn.Sequential(*layers).double()


def batch(number: int, rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + number)
    x, y = (torch.randn(4, n, generator=generator, dtype=torch.double) for n in (6, 3))
    return [x, 1000 * y if number == SPIKE else y]


def train(make, numbers, spoil) -> tuple[list[bool], str]:
    """What was taken, and all that is left. make() -> (module, optimizer, backward of a batch: its loss or None)"""
    module, optimizer, backward = make()
    parts = [Tensors(module), States(optimizer)]
    guard = LossGuard(
        spikes=Spikes(window=16, least=8), on_spike=["roll back"], copies=Copies(parts), every=5
    )
    taken = []
    for number in numbers:
        guard.begin()
        optimizer.zero_grad()
        loss = backward(*batch(number, dist.get_rank()))
        if number == BAD:
            loss = spoil(module, loss)
        taken.append(guard.look(loss, [p.grad for p in module.parameters()]).take)
        if taken[-1]:
            optimizer.step()
    left = [[*module.parameters()], parts[1].state_dict()]
    return taken, digest(nested.map_tensors(local, left))


def a_gradient(module, loss):
    """One number of one rank's own piece is infinite: no other rank has it."""
    if dist.get_rank() == 1:
        held = (local(p.grad) for p in module.parameters() if p.grad is not None)
        next(piece for piece in held if piece.numel()).view(-1)[0] = math.inf
    return loss


def the_loss(module, loss):
    return None if loss is None else loss * math.nan


def sharded():
    from dtcourse.sharding import fully_shard

    model = mlp()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return _adam(model, model)


def of_torch():
    from torch.distributed.fsdp import fully_shard

    model = mlp()
    fully_shard(model)
    return _adam(model, model)


def zero():
    """ZeRO-2: gradients are whole on one rank each."""
    from dtcourse.sharding import ShardedDataParallel, ZeroRedundancyOptimizer

    model = mlp()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    wrapped = ShardedDataParallel(model, optimizer)
    return model, optimizer, _backward(wrapped)


def piped():
    """Two stages: the last one has the loss."""
    from dtcourse.pipeline_parallel import Pipeline, one_f_one_b, split

    schedule = one_f_one_b(RANKS, 2)
    stages = split(mlp(), [range(2), range(2, 5)], schedule, dist.get_rank())
    pipeline = Pipeline(stages, schedule, F.mse_loss)
    optimizer = torch.optim.AdamW(pipeline.module.parameters(), lr=0.01)
    return pipeline.module, optimizer, pipeline.step


def _adam(model, wrapped):
    return model, torch.optim.AdamW(model.parameters(), lr=0.01), _backward(wrapped)


def _backward(model):
    def backward(x, y):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    return backward


TOGETHER = {
    "fully_shard": (sharded, a_gradient),
    "PyTorch's fully_shard": (of_torch, a_gradient),
    "ZeRO-2": (zero, a_gradient),
    "pipeline": (piped, the_loss),
    "a stage's gradient": (piped, a_gradient),
}


def everything():
    found = {}
    for name, (make, spoil) in TOGETHER.items():
        with_bad = train(make, range(STEPS), spoil)
        clean = train(make, SEEN, spoil)
        found[name] = (*with_bad, *clean)
    return found | {"scaled": scaled()}


# --- with a loss scaler ---------------------------------------------------------------------------------------------


def scaled() -> dict[str, tuple[list[bool], str, str]]:
    """DDP under each GradScaler: a loss that is nan on one rank in BAD, a gradient that overflows in step 6."""
    from dtcourse.data_parallel import DistributedDataParallel
    from dtcourse.memory import GradScaler

    torchs = nn.parallel.DistributedDataParallel, lambda: torch.amp.GradScaler("cpu", 1024.0)
    kinds = {
        "PyTorch's": torchs,
        "ours": (DistributedDataParallel, lambda: GradScaler(None, 1024.0)),
    }

    def run(wrap, make_scaler, numbers):
        model, scaler = mlp().float(), make_scaler()
        wrapped = wrap(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        guard, taken = LossGuard(limit=1), []
        for number in numbers:
            guard.begin()
            optimizer.zero_grad()
            x, y = (t.float() for t in batch(number, dist.get_rank()))
            loss = F.mse_loss(wrapped(x), y)
            if number == BAD and dist.get_rank() == 1:
                loss = loss * math.nan
            scaler.scale(loss).backward()
            taken.append(guard.look(loss).take)  # before the scaler does anything
            if taken[-1]:
                if number == 6:
                    model[0].weight.grad.view(-1)[0] = math.inf
                scaler.step(optimizer)
                scaler.update()
        left = [[*model.parameters()], optimizer.state_dict(), scaler.state_dict()]
        assert scaler.get_scale() == 512.0, "one overflow: the scaler's own business"
        return taken, digest(left)

    numbers = range(9)
    return {
        name: (*run(*kind, numbers), run(*kind, [n for n in numbers if n != BAD])[1])
        for name, kind in kinds.items()
    }


@pytest.fixture(scope="module")
def ranks():
    return list(launch(everything, RANKS))


@pytest.mark.parametrize("name", TOGETHER)
def test_what_one_rank_sees_all_leave_out(ranks, name):
    for found in ranks:
        taken, left, clean_taken, clean = found[name]
        assert taken == [n not in (BAD, SPIKE) for n in range(STEPS)]
        assert all(clean_taken)
        assert left == clean


@pytest.mark.parametrize("kind", ["ours", "PyTorch's"])
def test_a_scaler_keeps_its_overflows_to_itself_and_is_not_told_of_a_loss_left_out(ranks, kind):
    for found in ranks:
        taken, left, clean = found["scaled"][kind]
        assert taken == [n != BAD for n in range(9)]
        assert left == clean
