"""Which algorithm each of our backends runs for each collective."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

# For each backend, the modules that are asked for an algorithm, in this order.
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "naive": ("naive",),
    "ring": ("ring", "tree", "pairwise", "naive"),
    "tree": ("tree", "ring", "pairwise", "naive"),
    "double_tree": ("double_tree", "tree", "ring", "pairwise", "naive"),
    "halving_doubling": ("halving_doubling", "tree", "ring", "pairwise", "naive"),
    "hierarchical": ("hierarchical", "tree", "ring", "pairwise", "naive"),
}


def choices() -> list[str]:
    """Names of our backends, for launch(backend=...) and dist.init_process_group."""
    return list(ALGORITHMS)


def algorithm(backend: str, collective: str) -> Callable[..., Any]:
    """The function that a backend runs for a collective: ring.all_reduce for "ring" and "all_reduce"."""
    for name in ALGORITHMS[backend]:
        module = importlib.import_module(f"dtcourse.collectives.{name}")
        if hasattr(module, collective):
            return getattr(module, collective)
    raise NotImplementedError(f"no algorithm of the {backend} backend does {collective}")
