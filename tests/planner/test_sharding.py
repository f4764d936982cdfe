"""What sharded parameters send: each number once, hidden behind the work that is there, in the dtype that travels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtcourse.planner import Batch, Layout, Measured, Precision, Software, predict
from dtcourse.planner.setting import Setting
from dtcourse.planner.sharding import exchange
from dtcourse.planner.stage import Stages
from tests.planner.conftest import known


def by_bytes(rate):
    """A network without latency: seconds are bytes over a rate."""
    return Measured(collective=lambda ranks, stride, kind, nbytes: nbytes / rate)


def sharding(model, layout, batch, rate, **options):
    card = known("H100 SXM", measured=by_bytes(rate))
    return predict(model, card, layout, batch, **options).parts["sharding"]


def test_all_that_is_sent_is_seen_or_hidden_behind_work_also_of_an_untied_head(llama):
    """Messages-bound: 2 numbers of each parameter but 3 of each block's; what hides them is less than all work."""
    layout, rate = Layout(dp_shard=16, stage=3), 1e9
    found = predict(llama, known("H100 SXM", measured=by_bytes(rate)), layout, Batch(16))
    blocks = llama.layers * llama.layer_parameters()
    sent = 2 * (2 * llama.parameters + blocks) / rate
    work = found.seconds - sum(found.parts[kind] for kind in ("sharding", "optimizer"))
    assert sent - work <= found.parts["sharding"] <= sent
    tables = llama.vocabulary * llama.hidden
    nothing = sharding(replace(llama, tied=True), layout, Batch(16), rate)
    assert found.parts["sharding"] - nothing == pytest.approx(2 * 2 * tables / rate, rel=0.01)


def test_a_first_gather_and_a_last_scatter_are_seen_and_the_others_are_behind_a_block(llama):
    layout = Layout(dp_shard=16, stage=3, copied=False)
    rate = 1e12  # a block's messages take less than its work
    found = sharding(llama, layout, Batch(16), rate)
    block, table = llama.layer_parameters(), llama.vocabulary * llama.hidden
    # Forward the embedding and the first block, backward their gradients; computing the embedding hides a little.
    assert found == pytest.approx(2 * (2 * table + 2 * block) / rate, rel=0.05)


def test_what_is_gathered_once_a_step_is_hidden_behind_one_micro_batch(gpt):
    layout = Layout(pp=2, dp_shard=8, stage=3, reshard_after_forward=False)
    few, many = (sharding(gpt, layout, Batch(8 * m), 1e9) for m in (2, 8))
    assert many == pytest.approx(few, rel=0.01)


def setting(model, layout, precision):
    software = Software(imbalance=1.0, attention_achieved=1.0, collective_launches=2.0)
    card = known("H100 SXM", measured=by_bytes(1.0))
    return Setting(model, card, layout, Batch(64), precision, software)


@pytest.mark.parametrize(("states", "nbytes"), [("bf16 + master", 2), ("bf16 autocast", 4)])
@pytest.mark.parametrize("stage", [1, 2])
def test_updated_parameters_are_gathered_as_they_are_kept(gpt, states, nbytes, stage):
    """1910.02054, section 5.1: after the step each rank collects the parameters, which are what it holds."""
    s = setting(gpt, Layout(dp_shard=8, stage=stage), Precision(states))
    _, weights = Stages(s).blocks[False]
    assert exchange(weights, s).gather == nbytes * weights.all


def test_in_8_bits_travel_linear_layers_of_blocks_alone(llama):
    layout = Layout(dp_shard=8, stage=3)
    two, one = (
        setting(llama, layout, Precision(eight_bit=True, gather_8bit=each))
        for each in (False, True)
    )
    (_, block), (_, ends) = Stages(one).blocks[False], Stages(one).head
    linear = block.all - 2 * llama.hidden
    assert exchange(block, two).gather - exchange(block, one).gather == linear
    assert exchange(ends, one).gather == exchange(ends, two).gather > 0


def test_what_comes_in_8_bits_is_not_cast_again(llama):
    layout = Layout(dp_shard=8, stage=3, copied=False)
    two, one = (
        predict(llama, "H100 SXM", layout, Batch(8), Precision(eight_bit=True, gather_8bit=each))
        for each in (False, True)
    )
    card = known("H100 SXM")
    linear = llama.layers * (llama.layer_parameters() - 2 * llama.hidden)
    saved = linear * 5 * (1 - 1 / 8) / (card.hbm * card.hbm_share)
    assert two.parts["memory"] - one.parts["memory"] == pytest.approx(saved, rel=0.01)


def test_a_gather_in_8_bits_is_of_products_in_8_bits():
    with pytest.raises(ValueError, match="gather_8bit is of eight_bit"):
        Precision(gather_8bit=True)


def test_an_experts_weights_are_cast_by_the_ranks_that_hold_them(mixtral):
    """Given out one to each rank nobody shares them: each casts all of its own, as without the 8-bit gather."""
    moved = []
    for ep in (1, 8):
        layout = Layout(dp_shard=8, ep=ep, stage=3)
        both = [
            Stages(setting(mixtral, layout, Precision(eight_bit=True, gather_8bit=each)))
            for each in (False, True)
        ]
        blocks = [each.blocks[True] for each in both]
        saved = blocks[0][0].parts["forward"]["memory"] - blocks[1][0].parts["forward"]["memory"]
        linear, experts = blocks[0][1].linear, blocks[0][1].experts
        moved.append((saved, 5 * 7 / 8 * (linear + (ep == 1) * experts)))
    card = known("H100 SXM")
    for saved, nbytes in moved:
        assert saved == pytest.approx(nbytes / (card.hbm * card.hbm_share), rel=0.01)


def test_what_is_copied_again_in_the_backward_pass_is_what_is_gathered_again(llama):
    """The blocks. The head is still there, and nobody asks for the embedding."""
    layout = Layout(dp_shard=16, stage=3)
    again, kept = (
        predict(llama, known("H100 SXM"), replace(layout, reshard_after_forward=each), Batch(16))
        for each in (True, False)
    )
    card = known("H100 SXM")
    blocks = 2 * 2 * llama.layers * llama.layer_parameters() / (card.hbm * card.hbm_share)
    assert again.parts["memory"] - kept.parts["memory"] == pytest.approx(blocks, rel=1e-9)


def test_a_tied_table_stays_gathered_beside_two_blocks(llama):
    """It is the head's at the end of the forward pass, and the first that backward asks for."""
    tied, layout = replace(llama, tied=True), Layout(dp_shard=16, stage=3)
    found = predict(tied, "H100 SXM", layout, Batch(16)).memory[0]["gathered"]
    table, block = tied.vocabulary * tied.hidden, tied.layer_parameters()
    # And the gradients of the largest unit, all in two bytes.
    assert found == pytest.approx(2 * (table + 2 * block) + 2 * max(table, block), rel=1e-3)
