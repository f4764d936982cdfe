"""One table of algorithms: what backends, predictions and the benchmark read."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from dtcourse import collectives
from dtcourse.collectives import terms
from dtcourse.collectives.algorithms import ALGORITHMS
from dtcourse.collectives.backend import table
from dtcourse.simulator import collective_cost as cost


def test_every_algorithm_of_the_package_is_in_it():
    """An algorithm is a module with steps of its own."""
    with_steps = set()
    for file in Path(collectives.__path__[0]).glob("*.py"):
        module = importlib.import_module(f"dtcourse.collectives.{file.stem}")
        functions = [
            f
            for name, f in vars(module).items()
            if name.endswith("_steps") and inspect.isfunction(f)
        ]
        if any(f.__module__ == module.__name__ for f in functions):
            with_steps.add(file.stem)
    assert set(ALGORITHMS) == with_steps


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=list(ALGORITHMS))
def test_what_it_has_a_model_of_it_also_does(algorithm):
    """And its model is the one of its name."""
    assert algorithm.use and inspect.getdoc(algorithm.module)
    if algorithm.terms is None:
        assert algorithm.name == "hierarchical"  # two links: hierarchical_seconds
        return
    assert algorithm.terms is getattr(terms, f"{algorithm.name}_terms")
    assert algorithm.seconds is getattr(terms, f"{algorithm.name}_seconds", None)
    modelled = [one for one in cost.COLLECTIVES if _has(algorithm, one)]
    assert modelled
    assert all(hasattr(algorithm.module, one) for one in modelled)
    steps = {one for one in cost.COLLECTIVES if f"{one}_steps" in vars(algorithm.module)}
    missing = steps - set(modelled)
    # Made of two other algorithms' steps; or of exchanges that are not along one path.
    assert missing <= {"halving_doubling": {"broadcast", "reduce", "barrier"}}.get(
        algorithm.name, set()
    ), missing


def _has(algorithm, collective):
    try:
        cost.terms(algorithm.name, collective, 1024, 4)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("backend", table.choices())
def test_every_backend_has_every_collective(backend):
    for collective in cost.COLLECTIVES:
        call = table.algorithm(backend, collective)
        own = ALGORITHMS[backend].module
        if hasattr(own, collective):
            assert call is getattr(own, collective)
    assert ALGORITHMS[backend].others is not None and set(ALGORITHMS[backend].others) < set(
        ALGORITHMS
    )
