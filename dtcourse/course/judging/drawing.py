"""The random numbers of a stretch of code: begun anew, and afterwards those that were there before go on."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def drawing(seed: int | None) -> Iterator[None]:
    """Of Python, torch and numpy, as far as they are loaded.

    seed: None for one that nobody knows: who has a check's file has its seeds, and makes the inputs of all ranks again
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    kept = (
        random.getstate(),
        torch.get_rng_state() if torch else None,
        numpy.random.get_state() if numpy else None,
    )
    random.seed(seed)
    if numpy:
        numpy.random.seed(seed)
    if torch:
        generator = torch.default_generator
        generator.seed() if seed is None else generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(kept[0])
        if torch:
            torch.set_rng_state(kept[1])
        if numpy:
            numpy.random.set_state(kept[2])
