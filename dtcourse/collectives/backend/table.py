"""Which algorithm each of our backends runs for each collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dtcourse.collectives.algorithms import ALGORITHMS


def choices() -> list[str]:
    """Names of our backends, for launch(backend=...) and dist.init_process_group."""
    return [name for name, algorithm in ALGORITHMS.items() if algorithm.others is not None]


def algorithm(backend: str, collective: str) -> Callable[..., Any]:
    """The function that a backend runs for a collective: ring.all_reduce for "ring" and "all_reduce"."""
    for name in (backend, *(ALGORITHMS[backend].others or ())):
        module = ALGORITHMS[name].module
        if hasattr(module, collective):
            return getattr(module, collective)
    raise NotImplementedError(f"no algorithm of the {backend} backend does {collective}")
