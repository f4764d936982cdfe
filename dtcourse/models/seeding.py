"""Weights from a seed, without touching the caller's random state.

Replicas start equal either because rank 0 broadcasts its weights, or because every rank draws the same ones.
Both happen in this course; the second needs a construction that depends on its seed alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draws on the CPU inside it depend on `seed` alone; afterwards the CPU's random state is what it was before.

    A GPU's generator is neither seeded nor changed: build on the CPU, then move, as the models here do.
    """
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError(f"a seed is an integer; got {seed!r}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
