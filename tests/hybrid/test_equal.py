"""Every layout is one process: losses, gradients per parameter, norms, clipped steps and the state."""

from __future__ import annotations

import functools

import pytest

from dtcourse import launch
from dtcourse.hybrid import HybridConfig
from dtcourse.verify import compare
from tests.hybrid.layouts import (
    MICRO_BATCHES,
    MODELS,
    alone,
    named,
    orders,
    together,
    used,
    vectors,
)

truth = functools.cache(alone)


def check(cut: HybridConfig, config, ranks) -> None:
    right, runs = truth(config), launch(together, ranks, config, cut)
    heard = [run.losses for run in runs if run.losses[0] is not None]
    assert len(heard) * cut.pp == ranks, "the last stage's ranks know the loss, and no others"
    for losses in heard:
        assert losses == pytest.approx(right.losses, rel=1e-12)
    for rank, found in enumerate(runs):
        for step, (mine, theirs) in enumerate(zip(found.gradients, right.gradients, strict=True)):
            compare(mine, used(theirs), 1e-12, f"rank {rank}, step {step}: gradient", norm=2)
        assert found.norms == pytest.approx(right.norms, rel=1e-12)
        compare(found.state, used(right.state), 1e-12, f"rank {rank}: value", norm=2)


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
    check(cut, MODELS[model], ranks)


def test_none_is_left_out():
    assert [len(vectors(n)) for n in (1, 2, 4, 8)] == [1, 5, 15, 35]
    assert len(layouts((4,))) == 5 + 10 * 2
