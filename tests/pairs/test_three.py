"""Three techniques at once on 2 x 2 x 2 ranks are one process: gradients per parameter, norms, clipped steps, states."""

from __future__ import annotations

import functools

import pytest
import torch

from dtcourse import launch
from dtcourse.models import TransformerConfig
from dtcourse.verify import compare
from tests.pairs.grid import Alone, Grid, Task, Training
from tests.pairs.layouts import Steps

STEPS = 2
# Tied, with biases; a frozen matrix and a norm, and a layer that nobody uses.
DENSE = Task(TransformerConfig(vocab=31, n_layers=2, d_model=16, n_heads=4, max_length=8), frozen=frozenset({4, 11}))
# Gates' losses count; what two tensor ranks hold of each expert is 3 wide.
MIXED = Task(
    TransformerConfig(vocab=31, n_layers=2, d_model=16, n_heads=4, max_length=8, d_ff=6, experts=4, balancing=0.7),
    frozen=frozenset({4, 11}),
)  # fmt: skip

DATA = ("fully_shard", "FullyShardedDataParallel", "ZeRO-1", "ZeRO-2", "DistributedDataParallel")
TENSORS = [Grid(2, 2, 1, 2, outer) for outer in DATA]
EXPERTS = [Grid(2, 2, 2, 1, outer) for outer in ("nothing", *DATA[:3])]
OTHERS = [
    (Grid(2, 2, 1, 2, "fully_shard", sequence=True, schedule="GPipe"), DENSE),
    (Grid(2, 2, 1, 2, "ZeRO-2", sequence=True, schedule="interleaved"), DENSE),
    (Grid(2, 1, 2, 2, "FullyShardedDataParallel"), MIXED),
    (Grid(2, 1, 2, 2, "ZeRO-1", schedule="GPipe"), MIXED),
    (Grid(1, 2, 2, 2, expert_first=True), MIXED),
    (Grid(2, 2, 2, 1, "fully_shard", expert_first=True), MIXED),
]


def together(grid: Grid, task: Task) -> Steps:
    return Training(grid, task).steps(range(STEPS))


@functools.cache
def truth(grid: Grid, task: Task) -> Steps:
    return Alone(task).steps([grid] * STEPS)


def zeros_of_none(right, mine):
    """Where gradients are averaged over experts' ranks, one that nobody has is zero."""
    return {
        name: torch.zeros_like(mine[name]) if value is None and mine[name] is not None else value
        for name, value in right.items()
    }


def check(grid: Grid, task: Task) -> None:
    right = truth(grid, task)
    for rank, found in enumerate(launch(together, grid.ranks, grid, task)):
        where = f"{grid}, rank {rank}"
        for step, (mine, theirs) in enumerate(zip(found.gradients, right.gradients, strict=True)):
            theirs = zeros_of_none(theirs, mine) if task.config.experts else theirs
            compare(mine, theirs, 1e-12, f"{where}, step {step}: gradient", norm=2)
        for mine, theirs in zip(found.norms, right.norms, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-12), where
        compare(found.state, right.state, 1e-12, f"{where}: value", norm=2)


def test_data_tensor_and_pipeline():
    check(TENSORS[0], DENSE)


def test_data_tensor_and_experts():
    check(EXPERTS[1], MIXED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grid", "task"),
    [*((g, DENSE) for g in TENSORS[1:]), *((g, MIXED) for g in (EXPERTS[0], *EXPERTS[2:])), *OTHERS],
    ids=str,
)
def test_any_three(grid, task):
    check(grid, task)
