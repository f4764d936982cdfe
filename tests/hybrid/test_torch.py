"""Ours against PyTorch's own composition: the same losses, and each parameter's gradients, over steps of SGD."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.distributed import pipelining

from dtcourse import launch
from dtcourse.hybrid import HybridConfig, parallelize
from dtcourse.hybrid.parallelize import ranges_of
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.parameters.whole import full_gradients
from dtcourse.pipeline_parallel import gpipe, one_f_one_b
from dtcourse.verify import compare
from tests.hybrid.against_torch import TorchTraining, gradients_of
from tests.hybrid.layouts import own_samples

SHAPE = TransformerConfig(
    vocab=32, n_layers=2, d_model=16, n_heads=4, max_length=8, tied=False, bias=False
)
SAMPLES, MICRO_BATCHES, STEPS, LR = 8, 2, 3, 0.5
SCHEDULES = {
    "GPipe": (gpipe, pipelining.ScheduleGPipe),
    "1F1B": (one_f_one_b, pipelining.Schedule1F1B),
}


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All targets count: a mean of micro-batches' means, which PyTorch's schedules take, is then the mean."""
    make = torch.Generator().manual_seed(step)
    tokens = torch.randint(SHAPE.vocab, (SAMPLES, SHAPE.max_length + 1), generator=make)
    return tokens[:, :-1], tokens[:, 1:]


def both(degrees: dict[str, int], name: str) -> list[dict[str, Any]]:
    """Each step's losses and gradients on this rank, of ours and of PyTorch's."""
    ours, torchs = SCHEDULES[name]
    cut = HybridConfig(**degrees, micro_batches=MICRO_BATCHES, schedule=ours, reduce_once=True)
    ranges = ranges_of(Transformer(SHAPE), cut)
    mine = parallelize(Transformer(SHAPE).double(), cut.mesh("cpu"), cut)
    theirs = TorchTraining(Transformer(SHAPE).double(), degrees, MICRO_BATCHES, ranges, torchs)
    optimizers = [
        torch.optim.SGD(side.module.parameters(), LR, foreach=False) for side in (mine, theirs)
    ]
    found = []
    for step in range(STEPS):
        tokens, targets = own_samples(mine, *batch(step))
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses = mine.step(tokens, targets), theirs.step(tokens, targets)
        gradients = full_gradients(mine.module), gradients_of(theirs.module)
        found.append({"losses": losses, "gradients": gradients, "data": mine.data_rank})
        for optimizer in optimizers:
            optimizer.step()
    return found


def check(degrees: dict[str, int], name: str) -> None:
    """On all ranks, to 1e-10."""
    runs = launch(both, math.prod(degrees.values()), degrees, name, device="cpu", timeout=300.0)
    for step in range(STEPS):
        # PyTorch's loss is that of a rank's own samples, ours that of all.
        heard = {
            r[step]["data"]: r[step]["losses"] for r in runs if r[step]["losses"][0] is not None
        }
        mean = sum(theirs for _, theirs in heard.values()) / len(heard)
        assert len(heard) == degrees.get("dp_shard", 1)
        assert [float(mine) for mine, _ in heard.values()] == pytest.approx(
            [mean] * len(heard), rel=1e-10
        )
        seen = set()
        for rank, run in enumerate(runs):
            mine, theirs = run[step]["gradients"]
            seen |= {*theirs}
            there = {parameter: mine[parameter] for parameter in theirs}
            compare(there, theirs, 1e-10, f"rank {rank}, step {step}: gradient", norm=2)
        assert seen == {*dict(Transformer(SHAPE).named_parameters())}


FOUR = [
    ({"dp_shard": 2, "tp": 2}, "1F1B"),
    ({"dp_shard": 2, "pp": 2}, "1F1B"),
    ({"dp_shard": 2, "pp": 2}, "GPipe"),
    ({"pp": 2, "tp": 2}, "1F1B"),
]


def named(value: Any) -> str:
    """In a test's name."""
    return value if isinstance(value, str) else " x ".join(f"{a} {n}" for a, n in value.items())


@pytest.mark.parametrize(("degrees", "schedule"), FOUR, ids=named)
def test_two_axes_are_pytorchs(degrees, schedule):
    check(degrees, schedule)


@pytest.mark.slow
@pytest.mark.stands_on(share=(1, 2), lately=(1, 2))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_three_axes_are_pytorchs(schedule):
    check({"dp_shard": 2, "pp": 2, "tp": 2}, schedule)
