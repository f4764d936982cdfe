"""Three techniques at once on 2 x 2 x 2 ranks are one process: gradients per parameter, norms, clipped steps."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import pytest

from dtcourse import launch
from dtcourse.models import TransformerConfig
from dtcourse.verify import compare
from tests.pairs.grid import Grid, Task, zeros_of_none
from tests.pairs.grid_training import Alone, Training
from tests.pairs.layouts import Steps

STEPS = 2
# Tied, with biases; a frozen matrix and a norm, and a layer that nobody uses.
DENSE = Task(
    TransformerConfig(vocab=31, n_layers=2, d_model=16, n_heads=4, max_length=8),
    frozen=frozenset({4, 11}),
)
# Gates' losses count; what two tensor ranks hold of each expert is 3 wide.
MIXED = Task(
    TransformerConfig(vocab=31, n_layers=2, d_model=16, n_heads=4, max_length=8, d_ff=6, experts=4, balancing=0.7),
    frozen=frozenset({4, 11}),
)  # fmt: skip

DATA = ("fully_shard", "FullyShardedDataParallel", "ZeRO-1", "ZeRO-2", "DistributedDataParallel")
TENSORS = [Grid(data=2, tensor=2, pipe=2, outer=outer) for outer in DATA]
EXPERTS = [Grid(data=2, tensor=2, expert=2, outer=outer) for outer in ("nothing", *DATA[:3])]
OTHERS = [
    (Grid(data=2, tensor=2, pipe=2, outer="fully_shard", sequence=True, schedule="GPipe"), DENSE),
    (Grid(data=2, tensor=2, pipe=2, outer="ZeRO-2", sequence=True, schedule="interleaved"), DENSE),
    (Grid(data=2, expert=2, pipe=2, outer="FullyShardedDataParallel"), MIXED),
    (Grid(data=2, expert=2, pipe=2, outer="ZeRO-1", schedule="GPipe"), MIXED),
    (Grid(tensor=2, expert=2, pipe=2, expert_first=True), MIXED),
    (Grid(data=2, tensor=2, expert=2, outer="fully_shard", expert_first=True), MIXED),
]


def together(grid: Grid, task: Task) -> Steps:
    return Training(grid, task).steps(range(STEPS))


@functools.cache
def truth(grid: Grid, task: Task) -> Steps:
    return Alone(task).steps([grid] * STEPS)


def check(grid: Grid, task: Task) -> None:
    check_found(grid, task, launch(together, grid.ranks, grid, task))


def check_found(grid: Grid, task: Task, ranks: Iterable[Steps]) -> None:
    right = truth(grid, task)
    for rank, found in enumerate(ranks):
        where = f"{grid}, rank {rank}"
        for step, (mine, theirs) in enumerate(zip(found.gradients, right.gradients, strict=True)):
            theirs = zeros_of_none(theirs, mine, task)
            compare(mine, theirs, 1e-12, f"{where}, step {step}: gradient", norm=2)
        for mine, theirs in zip(found.norms, right.norms, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-12), where
        compare(found.state, right.state, 1e-12, f"{where}: value", norm=2)


def test_data_tensor_and_pipeline():
    check(TENSORS[0], DENSE)


def test_data_tensor_and_experts():
    check(EXPERTS[1], MIXED)


ONE_OF_FOUR = (1, 4)


@pytest.mark.slow
@pytest.mark.stands_on(share=ONE_OF_FOUR, lately=ONE_OF_FOUR)
@pytest.mark.parametrize(
    ("grid", "task"),
    [
        *((g, DENSE) for g in TENSORS[1:]),
        *((g, MIXED) for g in (EXPERTS[0], *EXPERTS[2:])),
        *OTHERS,
    ],
    ids=lambda one: str(one) if isinstance(one, Grid) else "",
)
def test_any_three(grid, task):
    check(grid, task)
