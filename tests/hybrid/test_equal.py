"""Every layout is one process: losses, gradients per parameter, norms, clipped steps and the state."""

from __future__ import annotations

import pytest

from dtcourse.hybrid import HybridConfig
from tests.hybrid.layouts import MICRO_BATCHES, MODELS, check, named, orders, vectors


def layouts(numbers):
    return [
        pytest.param(n, degrees, order, id=named(degrees, order))
        for n in numbers
        for degrees in vectors(n)
        for order in orders(degrees)
    ]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("ranks", "degrees", "order"), layouts((1, 2, 4)))
def test_every_layout_in_every_order_of_axes_is_one_process(ranks, degrees, order, model):
    cut = HybridConfig(**degrees, axes=order, micro_batches=MICRO_BATCHES)
    check(cut, MODELS[model])


def test_none_is_left_out():
    assert [len(vectors(n)) for n in (1, 2, 4, 8)] == [1, 5, 15, 35]
    assert len(layouts((4,))) == 5 + 10 * 2
