"""Variants that say little beyond a test's first one: another number of ranks, another size, one more of a kind.

`make test` tries those that stand without this, and CI the others by turns (tests/rotation.py):

    @pytest.mark.parametrize("world_size", [1, 3, *taking_turns(2, 4, about="dtcourse/sharding/")])

Where a test has several parameters, `each_once` (on a test or, as pytestmark, on a file) leaves as many of their
combinations as it takes for each value of each parameter to be tried once; the others take turns:

    @pytest.mark.each_once("dtcourse/sharding/")
    @pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
    @pytest.mark.parametrize("outer", ["fully_shard", "FullyShardedDataParallel"])

Of numbers of ranks 3 stays where a technique takes any: it divides nothing evenly, and a rank's two neighbours are two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

ONE_OF_THREE, HALF = (1, 3), (1, 2)


def takes_turns(*about: str) -> pytest.MarkDecorator:
    """One of three in CI, every second one where what they are about has just changed."""
    return pytest.mark.stands_on(*about, share=ONE_OF_THREE, lately=HALF)


def taking_turns(*values: Any, about: str, several: bool = False) -> list[Any]:
    """Parameters of a test that take turns.

    about:   the folder that they prove something of
    several: each value is a tuple, of the test's several arguments
    """
    return [
        pytest.param(*(value if several else (value,)), marks=takes_turns(about))
        for value in values
    ]


def spread(tests: Sequence[pytest.Function]) -> None:
    """Mark those of one function's tests that `each_once` lets wait."""
    once = tests[0].get_closest_marker("each_once") if tests else None
    if once is None:
        return
    staying = [test for test in tests if test.get_closest_marker("stands_on") is None]
    # pytest's own names of the values, one of each `parametrize` (and fixture with values) that the function has
    named = [getattr(test, "callspec", None) for test in staying]
    kept = diagonal([dict(enumerate(one._idlist)) if one else {0: ""} for one in named])
    for number, test in enumerate(staying):
        if number not in kept:
            test.add_marker(takes_turns(*once.args))


def diagonal(combinations: Sequence[dict[Any, Any]]) -> set[int]:
    """The places of few combinations in which each value of each parameter is: of a product, of the fewest.

    combinations: which of its values each parameter has
    """
    missing = {pair for one in combinations for pair in one.items()}
    kept = set()
    while missing:
        new = [len(missing & one.items()) for one in combinations]
        best = new.index(max(new))
        kept.add(best)
        missing -= combinations[best].items()
    return kept
