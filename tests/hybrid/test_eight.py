"""Eight ranks: every degree vector with every ep that divides its dp_shard x cp, and axes in cyclic orders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtcourse.hybrid import HybridConfig
from dtcourse.hybrid.config import AXES
from tests.hybrid.layouts import MICRO_BATCHES, MIXTURE, check, named, vectors

# 8 stages, 8 heads, 8 experts, 8 parts of a sequence, each of two chunks.
MODEL = replace(MIXTURE, n_layers=6, n_heads=8, max_length=16, experts=8)

# `make test-all` tries all of them. Of 117 CI draws three, and fifteen where the package has changed.
FEW = pytest.mark.stands_on("dtcourse/hybrid/", share=(1, 40), lately=(1, 8))


def layouts():
    return [
        pytest.param(degrees, ep, id=f"{named(degrees)}, ep {ep}")
        for degrees in vectors(8)
        for ep in (1, 2, 4, 8)
        if degrees["dp_shard"] * degrees["cp"] % ep == 0
    ]


def cyclic():
    """Of layouts with three axes: each turn of the order that is the default."""
    return [
        pytest.param(degrees, AXES[turn:] + AXES[:turn], id=f"{named(degrees)}, turned by {turn}")
        for degrees in vectors(8)
        if sum(n > 1 for n in degrees.values()) == 3
        for turn in range(1, len(AXES))
    ]


@pytest.mark.slow
@FEW
@pytest.mark.parametrize(("degrees", "ep"), layouts())
def test_every_layout_of_eight_ranks_is_one_process(degrees, ep):
    check(HybridConfig(**degrees, ep=ep, micro_batches=MICRO_BATCHES), MODEL)


@pytest.mark.slow
@FEW
@pytest.mark.parametrize(("degrees", "axes"), cyclic())
def test_so_it_is_where_the_axes_are_turned(degrees, axes):
    check(HybridConfig(**degrees, axes=axes, micro_batches=MICRO_BATCHES), MODEL)


def test_none_is_left_out():
    assert len(layouts()) == 35 + sum(
        (d["dp_shard"] * d["cp"]).bit_length() - 1 for d in vectors(8)
    )
    assert len(cyclic()) == 10 * 4
