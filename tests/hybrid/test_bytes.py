"""Which axis talks how much to whom, and what each rank keeps, in every layout of 2 and 4 ranks: to the byte.

Messages are counted one by one on our own backend, and each is laid to the axes in which its two ranks differ. So an
axis that a layout names and nothing uses fails here, though all its numbers be right: its ranks would say nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
import torch

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.hybrid import HybridConfig, parallelize
from dtcourse.hybrid.config import AXES
from dtcourse.hybrid.volume import volume
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.pipeline_parallel import gpipe
from tests.hybrid.layouts import (
    BY_TURNS,
    MICRO_BATCHES,
    batch,
    named,
    own_samples,
    vectors,
)

V, D, L, S, BYTES = 32, 16, 2, 8, 8  # all divide by 4; doubles
F = 4 * D
MODEL = TransformerConfig(
    vocab=V, n_layers=L, d_model=D, n_heads=4, max_length=S, tied=False, bias=False
)
SAMPLES = S  # as `batch` makes them
SHARDING = ("all_gather", "reduce_scatter")
# Elements of each layer: what tensor parallelism cuts, and norms and positions, which it leaves.
BLOCK = (4 * D * D + 2 * D * F, 2 * D)
LAYERS = [(V * D, S * D), BLOCK, BLOCK, (V * D, D)]


def second_step(cut):
    """The first one sends headers, too."""
    training = parallelize(Transformer(MODEL).double(), cut.mesh("cpu"), cut)
    for phase in ("first", "second"):
        with traffic.phase(phase):
            training.step(*own_samples(training, *batch(MODEL, 0)))
    return training.layout.place, training.layout.parameter_bytes


def measured(cut):
    """Bytes that all ranks send, by (what for, the axes in which the two ranks differ)."""
    run = launch(second_step, cut.ranks, cut, backend="ring", record=True)
    places, sent = [place for place, _ in run], Counter()
    for row in run.traffic.select(phase="second", direction="sent"):
        here, there = places[row.rank], places[row.peer]
        axes = " x ".join(name for name in AXES if here[name] != there[name])
        if row.operation in ("all_gather", "reduce_scatter"):
            # A ring over ranks of two axes: some neighbours differ in one of them, some in both.
            assert axes in ("dp_shard", "cp", "dp_shard x cp")
            axes = "dp_shard x cp"
            assert row.axis == ("dp_shard x cp" if cut.cp > 1 else "dp_shard")
        else:
            assert row.axis == axes
        sent[row.operation, axes] += row.bytes
    return dict(sent), [(place, kept) for place, kept in run]


def elements(layer, tp):
    """On each tensor rank."""
    cut, left = LAYERS[layer]
    return cut // tp + left


def stage_of(place, cut):
    per_stage = (L + 2) // cut.pp
    return range(place * per_stage, (place + 1) * per_stage)


def by_axis(sent):
    """As the formula has them: full sharding's axis by its name, by its two names where there are two."""
    return {(axes, operation): number for (operation, axes), number in sent.items()}


def kept(cut, place):
    """Bytes of parameters on a rank: its stage's, its slices, its shard."""
    mine = stage_of(place["pp"], cut)
    over = cut.dp_shard * cut.cp if cut.dp_shard > 1 else 1
    return sum(elements(layer, cut.tp) for layer in mine) * BYTES // over


def meta(**other):
    with torch.device("meta"):
        return Transformer(replace(MODEL, **other))


def check(cut):
    sent, ranks = measured(cut)
    right = volume(meta(), cut, SAMPLES, BYTES)
    if cut.cp == 1:
        right = {
            (a.replace("dp_shard", "dp_shard x cp") if o in SHARDING else a, o): n
            for (a, o), n in right.items()
        }
    assert by_axis(sent) == right
    for place, there in ranks:
        assert there == kept(cut, place), place
    spoken = {axis for _, axes in sent for axis in axes.split(" x ")}
    assert spoken >= {name for name in AXES if getattr(cut, name) > 1}, "every axis is used"


@pytest.mark.parametrize(
    "degrees",
    [
        pytest.param(v, id=named(v), marks=BY_TURNS if n == 4 and number % 3 else ())
        for n in (2, 4)
        for number, v in enumerate(vectors(n))
    ],
)
def test_each_axis_sends_and_leaves_what_the_sizes_say(degrees):
    check(HybridConfig(**degrees, micro_batches=MICRO_BATCHES))


@pytest.mark.parametrize(
    "degrees",
    [
        pytest.param(v, id=named(v), marks=BY_TURNS if n == 4 else ())
        for n in (2, 4)
        for v in vectors(n)
        if v["dp_shard"] > 1
    ],
)
def test_gradients_leave_once_where_that_is_asked_for(degrees):
    """m times fewer bytes of gradients, gathers until the first backward alone, and as many bytes on other axes."""
    once = HybridConfig(**degrees, micro_batches=MICRO_BATCHES, reduce_once=True)
    check(once)
    right, often = (
        volume(meta(), once, SAMPLES),
        volume(meta(), replace(once, reduce_once=False), SAMPLES),
    )
    fewer = {key for key in right if right[key] < often[key]}
    scatter = next(key for key in right if key[1] == "reduce_scatter")
    assert right[scatter] * MICRO_BATCHES == often[scatter]
    gather = (scatter[0], "all_gather")
    assert fewer == {scatter, gather} | (
        {("dp_replicate", "all_reduce")} if once.dp_replicate > 1 else set()
    )


@pytest.mark.parametrize(
    ("model", "given", "sentence"),
    [
        ({"tied": True}, {}, "does not know of tied embeddings"),
        ({"bias": True}, {"dp_replicate": 2}, "does not know of biases"),
        ({}, {"pp": 2, "schedule": gpipe}, "does not know of GPipe"),
        ({}, {"tp": 2, "sequence": True}, "does not know of sequence=True"),
        ({}, {"cp": 2, "context": "ulysses"}, "does not know of context='ulysses'"),
        ({}, {"recompute": True}, "does not know of recompute=True"),
        ({"n_kv_heads": 1}, {"tp": 2}, "does not know of 1 key-value heads on tp(2) ranks"),
        ({}, {"dp_shard": 3}, "32 rows, and they do not divide by tp(1) x 3 ranks"),
        ({}, {"tp": 3}, "cannot be cut over 3 ranks"),
    ],
)
def test_the_formula_says_what_it_does_not_know(model, given, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        volume(meta(**model), HybridConfig(**given), SAMPLES)


def test_the_order_of_axes_changes_who_talks_and_not_how_much():
    orders = (AXES, ("tp", "cp", "dp_shard", "dp_replicate", "pp"))
    one, other = (
        measured(HybridConfig(dp_replicate=2, tp=2, axes=axes, micro_batches=MICRO_BATCHES))
        for axes in orders
    )
    assert one[0] == other[0]
    assert [place for place, _ in one[1]] != [place for place, _ in other[1]]
