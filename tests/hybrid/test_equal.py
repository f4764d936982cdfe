"""Every layout is one process: losses, gradients per parameter, norms, clipped steps and the state."""

from __future__ import annotations

import pytest

from dtcourse.hybrid import HybridConfig
from tests.hybrid.layouts import BY_TURNS, MICRO_BATCHES, MODELS, check, named, orders, vectors


def layouts(numbers):
    """Every run tries each axis, and each two of them, with one of the models and in one order of the axes; another
    model, another order and four ranks on one axis take turns."""
    found = []
    for n in numbers:
        for number, degrees in enumerate(vectors(n)):
            for turned, order in enumerate(orders(degrees)):
                for which, model in enumerate(MODELS):
                    first = turned == 0 and which == number % len(MODELS)
                    always = first and 4 not in degrees.values()
                    found.append(
                        pytest.param(
                            degrees, order, model,
                            id=f"{named(degrees, order)}-{model}", marks=() if always else BY_TURNS,
                        )
                    )  # fmt: skip
    return found


@pytest.mark.parametrize(("degrees", "order", "model"), layouts((1, 2, 4)))
def test_every_layout_in_every_order_of_axes_is_one_process(degrees, order, model):
    cut = HybridConfig(**degrees, axes=order, micro_batches=MICRO_BATCHES)
    check(cut, MODELS[model])


def test_none_is_left_out():
    assert [len(vectors(n)) for n in (1, 2, 4, 8)] == [1, 5, 15, 35]
    every = layouts((4,))
    assert len(every) == (5 + 10 * 2) * len(MODELS)
    always = [one.values[0] for one in every if not one.marks]
    pairs = {frozenset(name for name in degrees if degrees[name] == 2) for degrees in always}
    assert len(always) == len(pairs) == 10 and all(len(pair) == 2 for pair in pairs)
