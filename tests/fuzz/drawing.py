"""Examples of hypothesis's to run many at a time in one launch, and not one after the other as it would."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

Example = TypeVar("Example")


def drawn(strategy: st.SearchStrategy[Example], number: int, of_seed: int) -> list[Example]:
    """So many different ones (or somewhat less, where it finds no more): the same for the same seed."""
    found: dict[Example, None] = {}

    # Some it draws twice. What fails is nobody's to make smaller here: it does not run within.
    @seed(of_seed)
    @settings(
        max_examples=2 * number,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(example):
        if len(found) < number:
            found.setdefault(example)

    draw()
    return list(found)
