"""1,024 ranks on one core: bytes are the formula's, and FLOPs and memory are held against the planner's."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch

from dtcourse.hybrid import HybridConfig
from dtcourse.hybrid.virtual import trace_stages
from dtcourse.hybrid.volume import volume
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.planner import Batch, Layout, Model, Precision, Software, predict
from tests.virtual.jobs import build

# Rows divide by tp 8 x (dp_shard 8 x cp 2) = 128, the sequence by 2 cp.
SHAPE = TransformerConfig(
    vocab=128, n_layers=6, d_model=128, n_heads=8, max_length=32, tied=False, bias=False
)
ALL_AXES = HybridConfig(pp=4, dp_replicate=2, dp_shard=8, cp=2, tp=8, micro_batches=8)
SAMPLES = 8  # of each of 16 parts of the data


def test_bytes_on_every_axis_are_the_formulas():
    """Independent of the trace: hybrid/volume.py counts them from the sizes alone."""
    assert ALL_AXES.ranks == 1024
    sent: Counter[tuple[str, str]] = Counter()
    for stage in trace_stages(partial(build, SHAPE), ALL_AXES, SAMPLES):
        for row in stage.traffic.select(direction="sent"):
            if row.bytes:
                sent[row.axis, row.operation] += row.bytes * (ALL_AXES.ranks // ALL_AXES.pp)
    with torch.device("meta"):
        model = Transformer(SHAPE)
    assert dict(sent) == volume(model, ALL_AXES, samples=16 * SAMPLES, itemsize=8)


# GPT-3's 6.7B shape, of a fourth as many layers: large enough for a step's fixed costs to be small.
GPT = TransformerConfig(
    vocab=51200, n_layers=8, d_model=4096, n_heads=32, max_length=2048, tied=False, bias=False
)
# An embedding, 8 blocks and a head on four stages: 2 blocks each.
ON_1024 = HybridConfig(pp=4, dp_replicate=4, dp_shard=8, tp=8, micro_batches=8, layers=(3, 2, 2, 3))


@pytest.fixture(scope="module")
def both():
    """Traced stages, and predict's. One sequence a micro-batch, float32, attention written out, no recomputation."""
    stages = trace_stages(partial(Transformer, GPT), ON_1024, 8, optimizer=torch.optim.AdamW)
    model = Model(
        layers=8, hidden=4096, heads=32, vocabulary=51200, sequence=2048, tied=False, biases=False
    )
    layout = Layout(
        pp=4, dp_replicate=4, dp_shard=8, tp=8, stage=3, reduce_once=False, layers=(2, 2, 2, 2)
    )
    predicted = predict(
        model, "H100 SXM", layout, Batch(8 * 32, 1), Precision("fp32"),
        Software(attention="unfused", fragmentation=0.0), devices=1024,
    )  # fmt: skip
    return stages, predicted


def test_flops_are_the_planners(both):
    stages, predicted = both
    assert max(stage.flops for stage in stages) == pytest.approx(predicted.flops, rel=0.02)


def test_memory_is_the_planners_within_the_houses_bounds(both):
    """Outside of 0.8 to 1.25 the house wants a reason: then it is here, with the term that is missing."""
    stages, predicted = both
    for number, (stage, kinds) in enumerate(zip(stages, predicted.memory, strict=True)):
        told = sum(kinds.values()) - kinds["context"] - kinds["fragments"]
        assert 0.8 <= stage.peak_bytes / told <= 1.25, (number, stage.by_category, kinds)
