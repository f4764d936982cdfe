"""How many threads a check's own computing takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Small products are slower on several threads; the notebook's own number of threads comes back."""
    import torch  # here alone: a notebook without ranks does not load it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
