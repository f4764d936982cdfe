"""Of each pair, a sum over one of its axes that is left out or made twice is seen, with a parameter's name."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from dtcourse import launch
from dtcourse.models import TransformerConfig
from dtcourse.parameters.whole import full_gradients
from dtcourse.verify import NotEqual, compare
from tests.fuzz.pairs import DRAWN, grid_of
from tests.pairs.grid import AXES, Grid, Task, zeros_of_none
from tests.pairs.grid_training import Alone, Training
from tests.pairs.mutations import MUTATIONS, sum_over

CONFIG = TransformerConfig(vocab=13, n_layers=1, d_model=8, n_heads=2, max_length=4, d_ff=6)
DENSE, MIXED = Task(CONFIG), Task(replace(CONFIG, experts=4, balancing=0.7))


def pair_of(names: tuple[str, str]) -> tuple[Grid, Task]:
    return grid_of(*names, (2, 2), "1F1B"), MIXED if "expert" in names else DENSE


def axes_of(grid: Grid) -> list[str]:
    return [axis for axis in AXES if getattr(grid, axis) > 1]


CASES = [
    (names, axis, mutation)
    for names in DRAWN
    for axis in axes_of(pair_of(names)[0])
    for mutation in MUTATIONS
]


def gradients_of_all() -> dict:
    """Of each pair, without a mutation and under each: which sums were changed, and the whole gradients."""
    found = {}
    for names in DRAWN:
        training = Training(*pair_of(names))
        training.backward(0)
        found[names] = [], full_gradients(training.model)
        for axis in axes_of(training.grid):
            for mutation in MUTATIONS:
                with sum_over(training.mesh, axis, mutation) as changed:
                    training.backward(0)
                found[names, axis, mutation] = changed, full_gradients(training.model)
    return found


@functools.cache
def by_rank() -> list[dict]:
    return list(launch(gradients_of_all, 4, timeout=600))


@functools.cache
def right(names: tuple[str, str]) -> dict:
    grid, task = pair_of(names)
    return Alone(task).steps([grid]).gradients[0]


def check(names: tuple[str, str], mine: dict) -> None:
    """What test_three.py, and each pair's own test, holds gradients to."""
    _, task = pair_of(names)
    compare(mine, zeros_of_none(right(names), mine, task), 1e-12, norm=2)


@pytest.mark.parametrize("names", DRAWN, ids=" x ".join)
def test_without_a_mutation_it_is_one_process(names):
    for found in by_rank():
        check(names, found[names][1])


@pytest.mark.parametrize(
    ("names", "axis", "mutation"), CASES, ids=[f"{' x '.join(n)}-{a} {m}" for n, a, m in CASES]
)
def test_a_sum_over_an_axis_dropped_or_doubled_is_seen(names, axis, mutation):
    for found in by_rank():
        changed, gradients = found[names, axis, mutation]
        assert changed, f"nothing is summed over {axis}"
        with pytest.raises(NotEqual) as seen:
            check(names, gradients)
        assert any(name in str(seen.value) for name in right(names)), seen.value
