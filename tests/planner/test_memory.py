"""Bytes: each kind by its own formula, and nothing that a layout saves is free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtcourse.planner import Batch, Layout, Model, Precision, Software, predict
from dtcourse.planner.memory import block_bytes
from dtcourse.planner.setting import Setting
from tests.planner.conftest import known


def stage_memory(model, layout, batch, *, rank=0, card="H100 SXM", **options):
    return predict(model, card, layout, batch, **options).memory[rank]


def setting(model, layout, batch, software):
    return Setting(model, known("H100 SXM"), layout, batch, Precision(), software)


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("breadth_first", 2), ("1f1b", 1)])
def test_activations_are_those_of_the_whole_schedule_and_not_of_a_short_one(gpt, schedule, chunks):
    layout = Layout(pp=4, schedule=schedule, chunks=chunks)
    few, many = (stage_memory(gpt, layout, Batch(m))["activations"] for m in (40, 400))
    assert many == pytest.approx(few * (1 if schedule == "1f1b" else 10))


def test_parameters_that_are_not_given_back_stay_and_save_a_gather(gpt):
    batch, given_back = Batch(32, 1), Layout(dp_shard=8, stage=3)
    kept = replace(given_back, reshard_after_forward=False)
    assert stage_memory(gpt, kept, batch)["gathered"] >= 2 * gpt.parameters
    assert stage_memory(gpt, given_back, batch)["gathered"] < gpt.parameters / 2
    slow = known("H100 SXM", inside=1e9)
    sent = [predict(gpt, slow, each, batch).parts["sharding"] for each in (given_back, kept)]
    assert sent[1] == pytest.approx(
        sent[0] * 2 / 3, rel=0.1
    )  # of two gathers and a scatter one less


def test_offloaded_activations_take_the_wires_time_and_two_blocks_stay(gpt):
    layout, batch = Layout(), Batch(4, 4)
    plain = predict(gpt, "H100 SXM", layout, batch, software=Software(recompute="full"))
    slow, fast = (
        predict(gpt, "H100 SXM", layout, batch, software=Software(recompute="full", offload=rate))
        for rate in (1e6, 1e12)
    )
    block = block_bytes(setting(gpt, layout, batch, Software(recompute="full")))
    assert block == 2 * 4 * gpt.sequence * gpt.hidden
    wire = 2 * gpt.layers * block / 1e6  # there and back
    assert slow.seconds == pytest.approx(wire, rel=0.02) and slow.parts["offload"] > 0.9 * wire
    assert fast.seconds == pytest.approx(plain.seconds)
    saved = plain.memory[0]["activations"] - fast.memory[0]["activations"]
    assert saved == pytest.approx((gpt.layers - 2) * block) == fast.host_bytes


def test_wider_main_gradients_are_counted(gpt):
    two, four = (
        stage_memory(gpt, Layout(), Batch(4), precision=Precision(accumulate=n)) for n in (2, 4)
    )
    assert four["gradients"] == 2 * two["gradients"] == 4 * gpt.parameters


def test_gradients_that_are_averaged_once_are_whole_until_then(gpt):
    found = stage_memory(gpt, Layout(pp=2, dp_shard=4, stage=2), Batch(16))
    assert found["gradients"] + found["gathered"] > 2 * gpt.parameters / 2


def test_unfused_attention_with_dropout_is_the_papers_first_equation(gpt):
    """2205.05198, equation 1: s b h (34 + 5 a s / h) bytes of a layer."""
    model, b = replace(gpt, dropout=True), 2
    found = block_bytes(setting(model, Layout(), Batch(b, b), Software("unfused")))
    s, h, a = model.sequence, model.hidden, model.heads
    assert found == pytest.approx(s * b * h * (34 + 5 * a * s / h), rel=0.01)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_activations_of_a_block_are_the_papers_table_of_tensor_and_sequence_parallelism(gpt, tp):
    """2205.05198, table 2, in bytes of a layer: what tp leaves whole, and what sequence parallelism cuts as well."""
    model, b = replace(gpt, dropout=True), 1
    s, h, a = model.sequence, model.hidden, model.heads

    def found(recompute, sequence_parallel=False):
        layout = Layout(tp=tp, sequence_parallel=sequence_parallel)
        return block_bytes(
            setting(model, layout, Batch(b, b), Software("unfused", recompute=recompute))
        )

    sbh, scores = s * b * h, 5 * a * s / h
    assert found("none") == pytest.approx(sbh * (10 + 24 / tp + scores / tp), rel=0.01)
    assert found("selective") == pytest.approx(sbh * (10 + 24 / tp), rel=0.01)
    assert found("full") == pytest.approx(2 * sbh)
    if tp > 1:
        assert found("none", True) == pytest.approx(sbh / tp * (34 + scores), rel=0.01)
        assert found("full", True) == pytest.approx(2 * sbh / tp)


def test_context_parallelism_cuts_scores_by_its_ranks_and_not_their_square(gpt):
    one, four = (
        block_bytes(setting(gpt, Layout(cp=cp), Batch(1), Software("unfused"))) for cp in (1, 4)
    )
    assert four == pytest.approx(one / 4, rel=0.01)


def test_rows_sent_to_experts_are_kept_beside_their_results(mixtral):
    model = replace(mixtral, experts=64, top_k=8, expert_ffn=1024)
    dense = Model(**{**vars(model), "experts": 0, "ffn": 8 * 1024})
    moe, plain = (
        block_bytes(setting(m, Layout(), Batch(1), Software()), experts=m.experts > 0)
        for m in (model, dense)
    )
    assert moe - plain >= 2 * 8 * model.sequence * model.hidden * 2


def test_the_reserve_is_said_and_decides_what_fits(gpt):
    found = predict(gpt, "H100 SXM", Layout(dp_shard=8, stage=3), Batch(8))
    assert found.memory[0]["context"] > 5e8 and found.memory[0]["fragments"] > 0
    assert found.peak_bytes - found.reserved_bytes == found.memory[0]["context"]
    least, most = found.bytes_interval
    assert least < found.peak_bytes < most
    without = found.peak_bytes - found.memory[0]["context"] / 2
    tight = known("H100 SXM", memory=without)
    assert not predict(gpt, tight, Layout(dp_shard=8, stage=3), Batch(8)).fits


def test_zero_over_copies_is_refused_and_over_shards_counted(gpt):
    with pytest.raises(ValueError, match=r"dp_shard\(1\) x cp\(1\) = 1 rank.*dp_shard=64"):
        Layout(dp_replicate=64, stage=1)
    found = stage_memory(gpt, Layout(dp_shard=64, stage=1), Batch(64))
    assert found["optimizer"] == pytest.approx(12 * gpt.parameters / 64, rel=1e-6)
    assert found["parameters"] == 2 * gpt.parameters


def test_autocast_keeps_casts_of_weights_where_they_are_not_sharded(gpt):
    precision = Precision("bf16 autocast")
    ddp, fsdp = (
        stage_memory(gpt, layout, Batch(8), precision=precision)["activations"]
        for layout in (Layout(dp_replicate=8), Layout(dp_shard=8, stage=3))
    )
    assert ddp - fsdp > 2 * 0.9 * gpt.layers * 12 * gpt.hidden**2


def test_buckets_beside_gradients_take_as_much_as_these(gpt):
    """DistributedDataParallel without gradient_as_bucket_view holds its buckets besides."""
    layout = Layout(dp_replicate=8)
    alone, beside, views = (
        sum(
            value
            for kind, value in stage_memory(gpt, each, Batch(8)).items()
            if kind != "fragments"
        )
        for each in (Layout(), layout, replace(layout, copied=False))
    )
    assert beside - views == pytest.approx(2 * gpt.parameters)
    assert views == alone


def test_gradients_of_experts_that_nobody_shares_are_counted_once(mixtral):
    layout = Layout(dp_shard=8, ep=8, stage=3, reduce_once=True)
    found = stage_memory(mixtral, layout, Batch(16))
    experts = mixtral.layers * mixtral.mlp_parameters(14336)
    dense = mixtral.parameters - 8 * experts
    weights = 2 * max(mixtral.vocabulary * mixtral.hidden, dense / 32) * 2
    most = 2 * (dense * (1 + 1 / 8) + experts) + weights
    assert found["gradients"] + found["gathered"] < most


def test_two_neighbouring_units_are_gathered_and_not_two_means(mixtral, gpt):
    mixed = replace(mixtral, moe_every=2)
    found = stage_memory(mixed, Layout(dp_shard=8, stage=3, reduce_once=True), Batch(8))
    both = 2 * mixtral.layer_parameters()
    dense = 2 * mixed.attention_parameters + mixed.mlp_parameters(mixed.wide)
    experts = mixed.expert_parameters(8)
    spread = found["gathered"] - 2 * mixed.parameters
    assert 2 * (dense + experts) <= spread < 2 * both
    last = stage_memory(gpt, Layout(pp=4, dp_shard=8, stage=3), Batch(32), rank=3)
    whole = 2 * (gpt.layers / 4 * gpt.layer_parameters() + gpt.vocabulary * gpt.hidden)
    assert (
        last["gathered"] - whole
        >= 2 * (gpt.vocabulary * gpt.hidden + gpt.layer_parameters()) * 0.99
    )
