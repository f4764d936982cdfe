"""Experts are given out over ranks that have different tokens, beside every other axis."""

from __future__ import annotations

import pytest

from dtcourse.hybrid import HybridConfig
from tests.hybrid.layouts import BY_TURNS, MICRO_BATCHES, MIXTURE, check, named, vectors


def most(degrees):
    """Ranks that experts can be given out over."""
    return degrees["dp_shard"] * degrees["cp"]


def with_experts(numbers):
    """Every degree vector with every ep that divides dp_shard x cp and the experts. Every run tries experts on as many
    ranks as there can be, beside each other axis; fewer, and one axis of four ranks, take turns."""
    return [
        pytest.param(
            degrees,
            ep,
            id=f"{named(degrees)}, ep {ep}",
            marks=()
            if n == 1 or (ep == most(degrees) > 1 and 4 not in degrees.values())
            else BY_TURNS,
        )
        for n in numbers
        for degrees in vectors(n)
        for ep in (1, 2, 4)
        if most(degrees) % ep == 0
    ]


@pytest.mark.parametrize(("degrees", "ep"), with_experts((1, 2, 4)))
def test_a_mixture_in_every_layout_is_one_process(degrees, ep):
    check(HybridConfig(**degrees, ep=ep, micro_batches=MICRO_BATCHES), MIXTURE)
