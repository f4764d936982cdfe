"""What others have counted is taken from them: collectives and memory of the simulator, parameters of the models."""

from __future__ import annotations

import pytest

from dtcourse.models import Transformer, TransformerConfig
from dtcourse.models.counting import transformer_parameters
from dtcourse.planner import Batch, Layout, Measured, Model, Precision, Software, predict
from dtcourse.planner.memory import Shape
from dtcourse.planner.network import Group, group
from dtcourse.simulator import activations
from dtcourse.simulator.cluster import Cluster
from dtcourse.simulator.cluster_collectives import predict as collective
from dtcourse.simulator.states import model_states
from tests.planner.conftest import known


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("nodes", [1, 4])
def test_collectives_are_the_simulators(kind, nodes):
    card = known("H100 SXM")
    for nbytes in (1e4, 1e7, 1e9):
        expected = collective(Cluster.of("H100", nodes=nodes), kind, nbytes).seconds
        assert Group(8 * nodes).seconds(card, kind, nbytes) == expected > 0


def test_groups_share_a_nodes_cards_and_inner_axes_are_in_a_node():
    card = known("H100 SXM")
    layout = Layout(pp=2, dp_shard=4, tp=8)
    tp, shard, pp = (group(layout, name) for name in ("tp", "dp_shard", "pp"))
    assert (tp, shard, pp) == (Group(8, 1), Group(4, 8), Group(2, 32))
    assert tp.cluster(card).nodes == 1
    across = shard.cluster(card)
    assert (across.nodes, across.gpus, across.cards) == (4, 1, 1)  # eight groups, a card each
    assert Group(16, 4).cluster(card).cards == 2
    turned = Layout(tp=2, dp_shard=8, axes=("pp", "dp_replicate", "tp", "cp", "dp_shard"))
    assert group(turned, "tp").cluster(card).nodes == 2
    above = known("H100 SXM", pod=16, oversubscription=4)
    assert Group(64).seconds(above, "all_gather", 1e9) > 3 * Group(64).seconds(
        card, "all_gather", 1e9
    )


@pytest.mark.parametrize(("stage", "ranks"), [(0, 4), (1, 4), (2, 4), (3, 4)])
def test_model_states_are_the_simulators(gpt, stage, ranks):
    layout = Layout(dp_shard=ranks, stage=stage)
    found = predict(gpt, "H100 SXM", layout, Batch(4), Precision("bf16 + master")).memory[0]
    states = model_states(gpt.parameters, precision="bf16 + master", stage=stage, ranks=ranks)
    assert [found["parameters"], found["gradients"], found["optimizer"]] == list(states.values())


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("attention", ["unfused", "flash2"])
def test_activations_are_the_simulators_and_tensor_parallelism_cuts_them_as_the_paper_says(
    gpt, recompute, attention
):
    def kept(**layout):
        software = Software(attention, recompute=recompute)
        return predict(gpt, "H100 SXM", Layout(**layout), Batch(2, 2), software=software).memory[0][
            "activations"
        ]

    options = {"precision": "bf16 + master", "on": "cuda"}
    shape = Shape.of(gpt)
    blocks = activations.block(
        shape, 2, gpt.sequence, checkpointing=recompute,
        attention="plain" if attention == "unfused" else "efficient", **options,
    )  # fmt: skip
    ends = sum(
        each.bytes
        for each in activations.around(shape, 2, gpt.sequence, **options)
        if "logarithms" not in each.name
    )
    one = gpt.layers * sum(each.bytes for each in blocks)
    assert kept() == one + ends
    assert kept(tp=8, sequence_parallel=True) == pytest.approx((one + ends) / 8, rel=1e-6)
    if recompute == "none":
        assert one / 8 + ends < kept(tp=8) < one + ends


@pytest.mark.parametrize(("stage", "volume"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_zero_sends_what_its_paper_says(gpt, stage, volume):
    """1910.02054, section 7: 2 Psi numbers up to stage 2, 3 Psi with stage 3, of which each rank sends (N - 1) / N."""
    sent = []

    def collective(ranks, stride, kind, nbytes):
        sent.append((2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks * nbytes)
        return sent[-1]

    card = known("H100 SXM", measured=Measured(collective=collective))
    layout = Layout(dp_shard=8, stage=stage, overlap_data=False, bucket=1e18)
    found = predict(gpt, card, layout, Batch(8)).parts
    seconds = found.get("sharding", 0.0) + found.get("averaging", 0.0)
    # The tables, which are one unit with the head, are gathered once and not given back between.
    once = gpt.embedding_parameters if stage == 3 else 0
    assert seconds == pytest.approx(7 / 8 * 2 * (volume * gpt.parameters - once), rel=1e-3)


SHAPES = [
    {},
    {"n_kv_heads": 2, "positions": "rotary", "norm": "rms", "mlp": "swiglu", "bias": False, "tied": False},
    {"experts": 4, "top_k": 2, "bias": False, "mlp": "swiglu", "norm": "rms", "d_ff": 96},
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=["gpt", "llama", "experts"])
def test_parameters_are_those_of_the_model_itself(shape):
    config = TransformerConfig(vocab=100, d_model=32, n_layers=3, n_heads=4, max_length=16, **shape)
    ours = Model(
        layers=3, hidden=32, heads=4, kv_heads=config.kv_heads, ffn=config.ff, gated=config.mlp == "swiglu",
        tied=config.tied, biases=config.bias, positions=config.positions, vocabulary=100, sequence=16,
        experts=config.experts, top_k=config.top_k,
    )  # fmt: skip
    assert ours.parameters == transformer_parameters(config)
    assert ours.parameters == sum(p.numel() for p in Transformer(config).parameters())


# Published counts and what the convention says of them: GPT-3 (2005.14165, table 2.1), Llama 3 (2407.21783).
PUBLISHED = [
    (Model(layers=96, hidden=12288, heads=96, vocabulary=50257), 174.6e9),
    (Model(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, gated=True, tied=False, biases=False,
           positions="rotary", vocabulary=128256, sequence=8192), 70.6e9),
    (Model(layers=126, hidden=16384, heads=128, kv_heads=8, ffn=53248, gated=True, tied=False, biases=False,
           positions="rotary", vocabulary=128256, sequence=8192), 405.9e9),
]  # fmt: skip


@pytest.mark.parametrize(("model", "parameters"), PUBLISHED, ids=["GPT-3", "70B", "405B"])
def test_published_parameters_and_the_convention_of_6n_and_12_lds(model, parameters):
    assert model.parameters == pytest.approx(parameters, rel=0.005)
    convention = 6 * model.parameters + 12 * model.layers * model.hidden * model.sequence
    assert model.flops_per_token() == convention
    assert model.flops_per_token(1.0) == pytest.approx(convention * 4 / 3)
