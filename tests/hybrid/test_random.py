"""Who draws which random numbers: the tp ranks the same, all others others, and another seed's none of them."""

from __future__ import annotations

import importlib
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch import nn

from dtcourse import launch
from dtcourse.hybrid import HybridConfig
from dtcourse.hybrid.axes import TOKENS
from dtcourse.hybrid.config import AXES
from dtcourse.parameters.naming import entries
from tests.hybrid.layouts import MICRO_BATCHES, TIED, batch, named, own_samples, start, vectors
from tests.turns import taking_turns

# The package's `parallelize` is the function.
parallelizing = importlib.import_module("dtcourse.hybrid.parallelize")
DROPOUT = replace(TIED, dropout=0.3)


def draws(config, cut):
    training = start(config, cut, 0)
    return training.layout.place, torch.rand(4).tolist()


TWO_AXES = [degrees for degrees in vectors(4) if 4 not in degrees.values()]
ONE_AXIS = [degrees for degrees in vectors(4) if 4 in degrees.values()]


@pytest.mark.parametrize(
    "degrees", [*TWO_AXES, *taking_turns(*ONE_AXIS, about="dtcourse/hybrid/")], ids=named
)
def test_ranks_with_other_activations_draw_other_numbers(degrees):
    found = launch(draws, 4, TIED, HybridConfig(**degrees, micro_batches=MICRO_BATCHES))
    for place, mine in found:
        for other, theirs in found:
            same = all(place[name] == other[name] for name in place if name != "tp")
            assert (mine == theirs) == same


def dropped(config, cut):
    """Two steps with dropout: parameters that ranks hold alike stay alike, gradients are those of one model."""
    training = start(config, cut, 0)
    training.step(*own_samples(training, *batch(config, 0)))
    alike = {}
    for entry in entries(training.module):
        if not any(cut.differs for cut in entry.placed.cuts) and entry.parameter.grad is not None:
            alike[entry.names[0]] = entry.parameter.grad.clone()
    return training.layout.place, alike


@pytest.mark.parametrize(
    "degrees",
    [{"tp": 4}, {"pp": 2, "tp": 2}, {"cp": 2, "tp": 2}, {"dp_replicate": 2, "cp": 2}],
    ids=lambda d: named({**dict.fromkeys(AXES, 1), **d}),
)
def test_with_dropout_copies_have_equal_gradients(degrees):
    config = replace(TIED, dropout=0.3)
    found = launch(dropped, 4, config, HybridConfig(**degrees, micro_batches=MICRO_BATCHES))
    for place, mine in found:
        for other, theirs in found:
            if place["pp"] == other["pp"]:
                assert mine.keys() == theirs.keys()
                assert mine
                for name, grad in mine.items():
                    assert torch.equal(grad, theirs[name]), name


def test_no_place_of_a_seed_draws_what_one_of_another_seed_draws():
    """A sum of seed and rank would: seed 0's rank 1, and seed 1's rank 0."""
    places = [
        (pp, r, s, c) for pp in range(4) for r in range(4) for s in range(4) for c in range(4)
    ]
    seeds = {parallelizing.seed_of(seed, place) for seed in range(64) for place in places}
    assert len(seeds) == 64 * len(places)
    # A CPU's generator takes 32 bits of a seed.
    few = {parallelizing.seed_of(seed, place) % 2**32 for seed in range(4) for place in places}
    assert len(few) == 4 * len(places)
    assert parallelizing.seed_of(3, (0, 1, 0, 0)) == parallelizing.seed_of(3, (0, 1, 0, 0))


def test_a_place_draws_the_same_whatever_the_order_of_axes():
    found = {}
    for axes in (AXES, AXES[::-1]):
        cut = HybridConfig(dp_replicate=2, cp=2, axes=axes, micro_batches=MICRO_BATCHES)
        for place, numbers in launch(draws, 4, TIED, cut):
            found.setdefault((place["dp_replicate"], place["cp"]), []).append(numbers)
    assert len(found) == 4
    assert all(one == other for one, other in found.values())


# --- dropout ---------------------------------------------------------------------------------------------------------


def masks(cut, seed_ranks=None):
    """What each dropout of a step drops, as what is left of ones; and where this rank is."""
    seeding = seed_ranks or parallelizing.seed_ranks
    with mock.patch.object(parallelizing, "seed_ranks", seeding):
        training, dropped = start(DROPOUT, cut, 0), []
    for module in training.module.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda m, x, y: dropped.append((y == 0) & (x[0] != 0)))
    training.step(*own_samples(training, *batch(DROPOUT, 0)))
    return training.layout.place, dropped


def wrong_pairs(found, split_over_tp):
    """Pairs of ranks that drop the same where they must differ, or other numbers where they must not."""
    wrong = []
    for place, mine in found:
        for other, theirs in found:
            apart = [name for name in AXES if place[name] != other[name]]
            if place["pp"] != other["pp"] or not apart:
                continue  # other stages have other dropouts, of other sizes
            assert len(mine) == len(theirs) > 0
            equal = [
                a.shape == b.shape and torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)
            ]
            same = apart == ["tp"] and not split_over_tp
            if not (all(equal) if same else not any(equal)):
                wrong.append(" x ".join(apart))
    return wrong


def same_everywhere(axes):
    torch.manual_seed(axes.config.seed)


def other_on_each_rank(axes):
    torch.manual_seed(axes.mesh.get_rank())


def without(name):
    """An axis that is left out of the place."""

    def seed(axes):
        names = [one for one in ("pp", *TOKENS) if one != name]
        torch.manual_seed(parallelizing.seed_of(0, [axes.rank(one) for one in names]))

    return seed


PAIRS = [
    {"tp": 2, "dp_replicate": 2},
    {"tp": 2, "dp_shard": 2},
    {"tp": 2, "cp": 2},
    {"tp": 2, "pp": 2},
    {"cp": 2, "dp_shard": 2},
    {"tp": 2, "dp_replicate": 2, "sequence": True},
]


@pytest.mark.parametrize("degrees", PAIRS, ids=lambda degrees: " ".join(map(str, degrees)))
def test_dropout_drops_alike_on_tensor_ranks_and_nowhere_else(degrees):
    """But for `sequence`, where each tensor rank has tokens of its own."""
    found = launch(masks, 4, HybridConfig(**degrees, micro_batches=MICRO_BATCHES))
    assert wrong_pairs(found, degrees.get("sequence", False)) == []


@pytest.mark.parametrize(
    ("axis", "seeds"),
    [
        ("dp_replicate", same_everywhere),
        ("tp", other_on_each_rank),
        ("dp_replicate", without("dp_replicate")),
        ("dp_shard", without("dp_shard")),
        ("cp", without("cp")),
    ],
    ids=["same everywhere", "tp too", "without dp_replicate", "without dp_shard", "without cp"],
)  # fmt: skip
def test_a_wrong_seed_is_seen(axis, seeds):
    found = launch(masks, 2, HybridConfig(**{axis: 2}, micro_batches=MICRO_BATCHES), seeds)
    assert wrong_pairs(found, False) == [axis, axis]
