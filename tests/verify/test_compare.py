"""The harness names the worst parameter, and the same one on every machine."""

from __future__ import annotations

import math

import pytest
import torch

from dtcourse.verify import NotEqual, compare

RIGHT = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, -1.0]), "c": torch.tensor([0.5])}


def off(**factors):
    return {name: value * factors.get(name, 1.0) for name, value in RIGHT.items()}


def test_the_worst_is_named():
    with pytest.raises(NotEqual, match=r"^b: .*off by 1\.0e\+00.*2 times too large"):
        compare(off(a=1.5, b=2.0, c=1.9), RIGHT)


@pytest.mark.parametrize("last_digits", [(1e-7, 0, 0), (0, 1e-7, 0), (0, 0, 1e-7)])
def test_of_those_that_are_as_wrong_the_first_is_named(last_digits):
    """A scale error is as large in all of them; rounding says which is a little larger, and differs by machine."""
    factors = dict(zip(RIGHT, (4 + digit for digit in last_digits), strict=True))
    with pytest.raises(NotEqual, match=r"^a: .*4 times too large"):
        compare({name: value.double() * factors[name] for name, value in RIGHT.items()}, RIGHT)


def test_nan_is_worst():
    got = off(a=9.0)
    got["b"] = torch.tensor([math.nan, 1.0])
    with pytest.raises(NotEqual, match=r"^b: .*off by nan.*not finite"):
        compare(got, RIGHT)


def test_rounding_is_none_and_nothing_is_compared_where_there_is_nothing():
    assert 0 < compare(off(a=1 + 1e-6), RIGHT) < 1e-5
    assert compare({"a": None}, {"a": None}) == 0.0
    assert compare({}, {}) == 0.0
