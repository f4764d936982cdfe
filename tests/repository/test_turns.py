"""What `each_once` leaves in the fixed set, and what takes turns beside it."""

from __future__ import annotations

from itertools import product

import pytest

from tests import turns
from tests.turns import taking_turns


def combined(**sizes):
    return [
        dict(zip(sizes, indices, strict=True)) for indices in product(*map(range, sizes.values()))
    ]


@pytest.mark.parametrize(
    ("sizes", "many"),
    [({"a": 2, "b": 3, "c": 2}, 3), ({"a": 4}, 4), ({"a": 1, "b": 5}, 5), ({"a": 3, "b": 3}, 3)],
)
def test_each_value_is_in_one_of_as_few_as_can_be(sizes, many):
    combinations = combined(**sizes)
    kept = [combinations[place] for place in turns.diagonal(combinations)]
    assert len(kept) == many
    for name, size in sizes.items():
        assert {one[name] for one in kept} == set(range(size))


def test_of_combinations_that_are_not_all_there_each_value_stays_too():
    combinations = [one for one in combined(a=3, b=3) if one["a"] != one["b"]]
    kept = [combinations[place] for place in turns.diagonal(combinations)]
    assert {(n, i) for one in kept for n, i in one.items()} == {
        (n, i) for n in "ab" for i in range(3)
    }


@pytest.mark.each_once("dtcourse/")
@pytest.mark.parametrize("first", ["a", "b", *taking_turns("c", about="tests/")])
@pytest.mark.parametrize("second", [0, 1])
def test_what_is_marked_is_spread(request, first, second):
    """It is itself one of its examples: a and b with one number each, all with c by the mark of that."""
    functions = [
        one
        for one in request.node.parent.collect()
        if getattr(one, "originalname", "") == "test_what_is_marked_is_spread"
    ]
    waiting = {one.callspec.id: one.get_closest_marker("stands_on") for one in functions}
    assert len(waiting) == 6
    staying = {name for name, mark in waiting.items() if mark is None}
    assert {name[-1] for name in staying} == {"a", "b"} and {name[0] for name in staying} == {
        "0",
        "1",
    }
    assert len(staying) == 2
    assert waiting["0-c"].args == ("tests/",)
    assert {mark.args for name, mark in waiting.items() if mark and name[-1] != "c"} == {
        ("dtcourse/",)
    }


def test_a_test_without_parameters_stays(request):
    """pytest gives a list for what has parameters alone: nothing of this one is marked."""
    turns.spread([request.node])
    assert request.node.get_closest_marker("stands_on") is None
