"""Which axis talks how much to whom, and what each rank keeps, in every layout of 2 and 4 ranks: to the byte.

Messages are counted one by one on our own backend, and each is laid to the axes in which its two ranks differ. So an
axis that a layout names and nothing uses fails here, though all its numbers be right: its ranks would say nothing.
"""

from __future__ import annotations

from collections import Counter

import pytest

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.hybrid import HybridConfig, parallelize
from dtcourse.hybrid.config import AXES
from dtcourse.models import Transformer, TransformerConfig
from tests.hybrid.layouts import MICRO_BATCHES, SAMPLES, batch, named, own_samples, vectors

V, D, L, S, BYTES = 32, 16, 2, 8, 8  # all divide by 4; doubles
F = 4 * D
MODEL = TransformerConfig(
    vocab=V, n_layers=L, d_model=D, n_heads=4, max_length=S, tied=False, bias=False
)
TOKENS = SAMPLES * S
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


def all_gathered(n, numbers):
    """Bytes that a ring of n ranks sends in all. A reduce-scatter sends as many."""
    return (n - 1) * numbers * BYTES


def all_reduced(n, numbers):
    return 2 * (n - 1) * numbers * BYTES


def stage_of(place, cut):
    per_stage = (L + 2) // cut.pp
    return range(place * per_stage, (place + 1) * per_stage)


def again_after_warm_up(cut):
    """Elements of the stages' own units that are gathered once more: for each backward that follows another one.

    1F1B: a stage has as many micro-batches under way when its last forward ends as there are stages behind it.
    """
    own = [
        sum(elements(layer, cut.tp) for layer in stage_of(stage, cut) if LAYERS[layer] != BLOCK)
        for stage in range(cut.pp)
    ]
    return sum(
        min(cut.pp - 1 - s, cut.micro_batches - 1) * numbers for s, numbers in enumerate(own)
    )


def formula(cut):
    """The same, from the sizes. Every group of an axis sends: as many as there are ranks in the others."""
    m, tp, pp, cp, replicas, shards = (
        cut.micro_batches, cut.tp, cut.pp, cut.cp, cut.dp_replicate, cut.dp_shard
    )  # fmt: skip
    sent = Counter()
    held = sum(elements(layer, tp) for layer in range(L + 2))
    # Activations are those of all tokens, once: data and context ranks have different ones.
    activations = TOKENS * D
    sent["send", "pp"] = tp * (pp - 1) * 2 * activations * BYTES
    # Forward: after the embedding, and twice per block; backward: twice per block, and before the head. Then the loss:
    # the largest logit and a flag per micro-batch, and two sums.
    of_loss = 3 * TOKENS + m * replicas * shards * cp
    sent["all_reduce", "tp"] = all_reduced(tp, (2 + 4 * L) * activations + of_loss)
    # Keys and values go round forward; backward they do again, and their gradients with them.
    sent["ring_attention", "cp"] = 3 * (cp - 1) * L * 2 * activations * BYTES
    if shards > 1:
        # Per micro-batch: a block is gathered forward and backward; what is left of a stage once, since it stays for
        # the backward that comes next. Gradients leave once.
        over, groups = shards * cp, replicas * tp
        gathered = m * (held + L * elements(1, tp)) + again_after_warm_up(cut)
        sent["all_gather", "dp_shard x cp"] = groups * all_gathered(over, gathered)
        sent["reduce_scatter", "dp_shard x cp"] = groups * all_gathered(over, m * held)
        sent["all_reduce", "dp_replicate"] = tp * all_reduced(replicas, m * held)
    else:
        sent["all_reduce", "dp_replicate"] = cp * tp * all_reduced(replicas, held)
        sent["all_reduce", "cp"] = replicas * tp * all_reduced(cp, held)
    # How many tokens count is asked on all ranks; the loss is on those of the last stage.
    for axis in ("dp_replicate", "dp_shard", "cp"):
        size = getattr(cut, axis)
        groups = cut.ranks // size
        sent["all_reduce", axis] += (groups + groups // pp) * all_reduced(size, 1)
    return {key: number for key, number in sent.items() if number}


def kept(cut, place):
    """Bytes of parameters on a rank: its stage's, its slices, its shard."""
    mine = stage_of(place["pp"], cut)
    over = cut.dp_shard * cut.cp if cut.dp_shard > 1 else 1
    return sum(elements(layer, cut.tp) for layer in mine) * BYTES // over


@pytest.mark.parametrize("degrees", [*vectors(2), *vectors(4)], ids=named)
def test_each_axis_sends_and_leaves_what_the_sizes_say(degrees):
    cut = HybridConfig(**degrees, micro_batches=MICRO_BATCHES)
    sent, ranks = measured(cut)
    assert sent == formula(cut)
    for place, there in ranks:
        assert there == kept(cut, place), place
    spoken = {axis for _, axes in sent for axis in axes.split(" x ")}
    assert spoken >= {name for name in AXES if degrees[name] > 1}, "every axis is used"


def test_the_order_of_axes_changes_who_talks_and_not_how_much():
    orders = (AXES, ("tp", "cp", "dp_shard", "dp_replicate", "pp"))
    one, other = (
        measured(HybridConfig(dp_replicate=2, tp=2, axes=axes, micro_batches=MICRO_BATCHES))
        for axes in orders
    )
    assert one[0] == other[0]
    assert [place for place, _ in one[1]] != [place for place, _ in other[1]]
