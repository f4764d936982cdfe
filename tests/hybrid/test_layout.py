"""What a layout says, and what it leaves on each rank."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dtcourse import launch
from dtcourse.hybrid import HybridConfig, parallelize
from dtcourse.models import Transformer
from dtcourse.parameters.whole import full_gradients, full_state_dict, load_full_state_dict
from dtcourse.verify import compare, gradients_of
from tests.hybrid.layouts import (
    GROUPED,
    MIXTURE,
    TIED,
    batch,
    named,
    own_samples,
    start,
    vectors,
)

# Each value of each parameter is tried every time, their other combinations by turns (tests/turns.py).
pytestmark = pytest.mark.each_once("dtcourse/hybrid/")


def said(config, cut):
    training = start(config, cut, 0)
    return str(training.layout), training.layout.parameter_bytes


def test_it_says_who_holds_what():
    cut = HybridConfig(dp_shard=2, tp=2)
    lines = launch(said, 4, TIED, cut)[1][0].splitlines()
    assert lines[0] == "pp(1) x dp_replicate(1) x dp_shard(2) x cp(1) x tp(2) = 4"
    assert lines[1].startswith(
        "rank 1: pp 0, dp_replicate 0, dp_shard 0, cp 0, tp 1; part 0 of 2 of the data; "
    )
    rows = {line.split()[0]: " ".join(line.split()) for line in lines[2:]}
    assert rows["blocks.1.mlp.down.weight"] == (
        "blocks.1.mlp.down.weight (16, 64) here (8, 32) dim 1 over tp, dim 0 over dp_shard"
    )
    assert rows["norm.bias"] == "norm.bias (16,) here (8,) dim 0 over dp_shard"
    assert "token_embedding.weight = output.weight" in rows["token_embedding.weight"]


def test_experts_are_named_by_who_shares_them():
    cut = HybridConfig(dp_replicate=2, cp=2, ep=2)
    lines = launch(said, 4, MIXTURE, cut)[3][0].splitlines()
    row = next(line for line in lines if "blocks.0.mlp.experts.up " in line)
    assert row.split("here ")[1] == "(2, 16, 8)  dim 0 over cp"
    assert next(line for line in lines if " norm.weight " in line).endswith("whole")


def whole_bytes(config):
    return sum(p.numel() * p.element_size() for p in Transformer(config).double().parameters())


@pytest.mark.parametrize("degrees", vectors(2), ids=named)
def test_each_axis_leaves_what_it_should_on_a_rank(degrees):
    """Full sharding halves all, tensor parallelism what is cut, a pipeline gives each stage its layers."""
    (axis,) = (name for name in degrees if degrees[name] > 1)
    held = [run[1] for run in launch(said, 2, GROUPED, HybridConfig(**degrees))]
    whole, whole_norms = whole_bytes(GROUPED), (2 * 2 + 1) * 16 * 8
    padding = 2 * 16 * 8  # a vocabulary of 31: embedding and head have 32 rows
    assert (
        held
        == {
            "dp_replicate": [whole, whole],
            "cp": [whole, whole],
            # Full sharding keeps no padding: 16 rows, and 15.
            "dp_shard": [(whole + padding) // 2, (whole - padding) // 2],
            "tp": [(whole + padding + whole_norms) // 2] * 2,
            # An embedding and a block; a block, the last norm and the head, which is as large.
            "pp": [(whole - 16 * 8) // 2, (whole + 16 * 8) // 2],
        }[axis]
    )


# --- a model without memory -----------------------------------------------------------------------------------------


def from_meta(config, cut, state):
    """Cut without values, then loaded: a step's loss and gradients, and the state."""
    with torch.device("meta"):
        model = Transformer(config).double()
    training = parallelize(model, cut.mesh("cpu"), cut)
    load_full_state_dict(training.module, state)
    loss = training.step(*own_samples(training, *batch(config, 0)))
    return loss, full_gradients(training.module), full_state_dict(training.module)


def memory_given(config, cut):
    """Bytes of all parameters that have memory anywhere in the model, and of what the rank keeps."""
    with torch.device("meta"):
        model = Transformer(config).double()
    training = parallelize(model, cut.mesh("cpu"), cut)
    there = {p for p in model.parameters() if not p.is_meta}
    return sum(p.numel() * p.element_size() for p in there), training.layout.parameter_bytes


@pytest.mark.parametrize(
    "cut",
    [
        HybridConfig(dp_shard=2, tp=2),
        HybridConfig(dp_shard=2, pp=2),
        HybridConfig(pp=2, tp=2),
        HybridConfig(dp_shard=2, cp=2),
        HybridConfig(dp_replicate=2, tp=2, sequence=True),
        HybridConfig(dp_shard=2, tp=2, sequence=True),
        HybridConfig(cp=2, pp=2),
    ],
    ids=lambda cut: cut.equation,
)
@pytest.mark.parametrize("config", [TIED, GROUPED], ids=["tied", "grouped"])
def test_a_model_on_meta_gets_memory_when_it_is_cut(config, cut):
    model = Transformer(config).double()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    tokens, targets = batch(config, 0)
    right = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    right.backward()
    # A key's bias has no gradient but rounding; a tied weight has one name there.
    sure = {n: g for n, g in gradients_of(model).items() if not n.endswith("attention.key.bias")}
    for loss, gradients, found in launch(from_meta, 4, config, cut, state):
        assert loss is None or loss == pytest.approx(right.item(), rel=1e-12)
        compare({n: gradients[n] for n in sure}, sure, 1e-12, "gradient", norm=2)
        compare(found, state, 0.0, "value")


def test_a_rank_gets_memory_for_its_part_alone():
    """Of a stage that tensor parallelism has cut; all else stays without."""
    cut = HybridConfig(pp=2, tp=2)
    for given, kept in launch(memory_given, 4, GROUPED, cut):
        assert given == kept < whole_bytes(GROUPED) * 0.3
