"""Variants that say little beyond a test's first one: another number of ranks, another size, one more of a kind.

`make test` tries those that stand without this, and CI the others by turns (tests/rotation.py):

    @pytest.mark.parametrize("world_size", [1, 3, *taking_turns(2, 4, about="dtcourse/sharding/")])

Of numbers of ranks 3 stays where a technique takes any: it divides nothing evenly, and a rank's two neighbours are two.
"""

from __future__ import annotations

from typing import Any

import pytest

ONE_OF_THREE, HALF = (1, 3), (1, 2)


def mark(*about: str) -> pytest.MarkDecorator:
    """One of three in CI, every second one where what they are about has just changed."""
    return pytest.mark.stands_on(*about, share=ONE_OF_THREE, lately=HALF)


def taking_turns(*values: Any, about: str, several: bool = False) -> list[Any]:
    """Parameters of a test that take turns.

    about:   the folder that they prove something of
    several: each value is a tuple, of the test's several arguments
    """
    return [pytest.param(*(value if several else (value,)), marks=mark(about)) for value in values]
