"""Rates by dtype, wires by card, and what was measured in place of what is computed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtcourse.planner import Batch, Hardware, Layout, Measured, Precision, Range, Software, predict
from dtcourse.planner.network import Group, neighbour
from tests.planner.conftest import known


@pytest.mark.parametrize(("card", "fp32", "tf32"), [("A100 SXM", 16, 2), ("H100 SXM", 14.76, 2)])
def test_products_of_32_bits_take_as_much_longer_as_data_sheets_say(gpt, card, fp32, tf32):
    def products(precision):
        found = predict(gpt, card, Layout(), Batch(4, 4), precision, Software("unfused"))
        return found.parts["products"], found.mfu * found.seconds

    (half, bare), (single, slow), (tensor, quick) = map(
        products, (Precision(), Precision("fp32"), Precision("fp32", tf32=True))
    )
    assert single / half == pytest.approx(fp32, rel=0.05)
    assert tensor / half == pytest.approx(tf32, rel=0.05)
    # The same operations, of the peak of the dtype.
    assert slow / bare == pytest.approx(fp32, rel=0.01)
    assert quick / bare == pytest.approx(tf32, rel=0.01)


def test_fused_attention_in_32_bits_is_refused_or_runs_at_their_rate(gpt):
    """FlashAttention's kernels take fp16 and bf16; others (memory-efficient attention) are what one says of them."""
    with pytest.raises(ValueError, match=r"flash2 .* 16-bit.*4 bytes.*unfused"):
        predict(gpt, "A100 SXM", Layout(), Batch(4), Precision("fp32"))
    said = Software(attention_share=(0.5, 0.5))
    half, single = (
        predict(gpt, "A100 SXM", Layout(), Batch(4), Precision(name), said).parts["attention"]
        for name in ("bf16 + master", "fp32")
    )
    assert single / half == pytest.approx(312 / 19.5)


def test_a_nodes_cards_are_as_many_as_its_devices_where_nobody_says_otherwise():
    assert Hardware.of("GH200", node_size=4, card=25e9).cards == 4
    assert Hardware.of("GH200", node_size=4, cards=1, card=25e9).cards == 1
    assert Hardware.of("H100 SXM").cards == 8
    with pytest.raises(ValueError, match=r"GB200.*node_size"):
        Hardware.of("GB200", network="EFA v1 P4d")
    four = Hardware.of("GB200", network="EFA v1 P4d", node_size=4)
    assert four.cards * four.card == 50e9


def test_a_measured_optimizer_is_a_ranks_also_where_it_has_several_stages(gpt):
    card = known("H100 SXM", measured=Measured(optimizer=0.5))
    for schedule in ("1f1b", "zb_v"):
        found = predict(gpt, card, Layout(pp=4, schedule=schedule), Batch(8))
        assert found.parts["optimizer"] == pytest.approx(0.5)


def test_a_precision_is_what_its_name_says():
    single = Precision("fp32")
    assert (single.compute, single.gather, single.reduce, single.accumulate) == (4, 4, 4, 4)
    half = Precision("bf16 + master", reduce=4)
    assert (half.compute, half.gather, half.reduce, half.accumulate) == (2, 2, 4, 2)


@pytest.mark.parametrize(("card", "same"), [("GH200", "H100 SXM"), ("GB200", "B200")])
def test_cards_of_one_chip_have_its_8_bits(gpt, card, same):
    eight, sixteen = (
        predict(gpt, card, Layout(), Batch(4, 4), Precision(eight_bit=each)).parts["products"]
        for each in (True, False)
    )
    assert eight < 0.75 * sixteen
    assert Hardware.of(card).peak_8bit >= Hardware.of(same).peak_8bit > 0


def test_8_bits_are_refused_where_there_are_none(gpt):
    with pytest.raises(ValueError, match=r"peak_8bit of A100 SXM is 0"):
        predict(gpt, "A100 SXM", Layout(), Batch(8), Precision(eight_bit=True))
    with pytest.raises(ValueError, match=r"peak_32 of by numbers is 0.*Say peak_32"):
        card = Hardware(peak=125e12, memory=32e9, hbm=0.9e12, sms=80, inside=150e9, like="A100")
        predict(gpt, card, Layout(), Batch(8), Precision("fp32"))


def test_a_named_cards_network_is_its_own_machines(gpt):
    assert Hardware.of("A100 SXM").card == 25e9 == Hardware.of("H100 SXM").card / 2
    assert Hardware.of("A100 SXM", network="EFA v1 P4d").card == 50e9 / 8
    for card in ("GH200", "GB200"):
        with pytest.raises(ValueError, match=rf"16 devices .* of {card} no network .* node_size"):
            predict(gpt, card, Layout(dp_replicate=16), Batch(16))
    rack = Hardware.of("GB200", node_size=72, cards=72, card=50e9)
    assert predict(gpt, rack, Layout(dp_replicate=64), Batch(64)).seconds > 0


def test_what_nobody_has_said_of_a_card_is_a_range_or_asked_for(gpt):
    numbers = {"peak": 125e12, "memory": 32e9, "hbm": 0.9e12, "sms": 80, "inside": 150e9}
    with pytest.raises(TypeError, match="like"):
        Hardware(**numbers)
    card = Hardware(**numbers, like="A100")
    low, high = predict(gpt, card, Layout(tp=8), Batch(8)).interval
    assert high > 1.15 * low
    with pytest.raises(ValueError, match=r"16 devices are more than a node.*card"):
        predict(gpt, card, Layout(dp_replicate=16), Batch(16))


def test_any_number_may_be_a_range_also_of_the_model(gpt):
    unsure = replace(gpt, vocabulary=Range(32000, 50304, 128000))
    found = predict(unsure, known("A100 SXM"), Layout(), Batch(8))
    sure = predict(gpt, known("A100 SXM"), Layout(), Batch(8))
    assert found.seconds == sure.seconds
    assert found.interval[0] < sure.interval[0] and found.interval[1] > sure.interval[1]


def test_rates_move_together_and_other_ranges_in_all_combinations(gpt):
    from dtcourse.planner.ranges import corners

    ranges = {"clock": Range(0.5, 1, 1.1), "launch": Range(0, 1e-6, 2e-6)}
    card = replace(known("A100 SXM"), **ranges)
    ends = [(c.clock, c.launch) for c, _ in corners((card, gpt))]
    assert sorted(ends) == [(0.5, 2e-6), (1.1, 0)]
    lengths = replace(gpt, sequence=Range(1024, 2048, 4096))
    assert len(list(corners((card, lengths)))) == 4


def test_flash_attention_is_that_of_the_card(gpt):
    with pytest.raises(ValueError, match="flash3 has figures on H100, not on A100"):
        predict(gpt, "A100 SXM", Layout(), Batch(8), software=Software("flash3"))
    exact = Software(attention_achieved=1.0)
    cards = [Hardware.of(name) for name in ("H100 SXM", "B200")]
    rates = [card.peak * exact.flash_share(card.like)[0] for card in cards]
    assert rates[1] == pytest.approx(rates[0], rel=0.05)  # the same instructions


def test_measured_products_and_blocks_take_the_place_of_computed_ones(gpt, a100):
    layout, batch = Layout(), Batch(2, 2)
    one = predict(gpt, a100, layout, batch)
    shape = (2 * gpt.sequence, gpt.wide, gpt.hidden, 1)
    slow = replace(a100, measured=Measured(products={shape: 1.0}))
    assert predict(gpt, slow, layout, batch).seconds > one.seconds + 0.99 * gpt.layers
    times = {"block": (0.1, 0.2, 0.3), "embedding": (0.0, 0.0, 0.0), "head": (1.0, 1.0, 1.0)}
    whole = replace(a100, measured=Measured(stretches=times, optimizer=0.5))
    found = predict(gpt, whole, layout, Batch(6, 2))
    assert found.seconds == pytest.approx(3 * (gpt.layers * 0.6 + 3.0) + 0.5)
    assert found.parts["measured"] == pytest.approx(found.seconds - 0.5)
    by_hand = replace(whole, measured=replace(whole.measured, collective=lambda *_: 0.01))
    four = predict(
        gpt,
        by_hand,
        Layout(dp_replicate=4, overlap_data=False, bucket=1e18, copied=False),
        Batch(8, 2),
    )
    assert four.seconds == pytest.approx(gpt.layers * 0.6 + 3.0 + 0.5 + 0.01)


def test_copies_of_what_is_gathered_and_sent_take_the_devices_time(gpt, a100):
    """fully_shard: parameters copied out twice (the embedding's once), gradients into what is sent, and a part of them
    added to.
    """
    layout, batch = Layout(dp_shard=8, stage=3), Batch(32, 1)  # four micro-batches
    copied, flat = (
        predict(gpt, a100, replace(layout, copied=kind), batch).parts["memory"]
        for kind in (True, False)
    )
    each = 2 * 2 * 2 + (2 + 2) + (2 + 2 * 2) / 8  # bytes of a parameter for one micro-batch
    moved = each * gpt.parameters - 2 * 2 * gpt.embedding_parameters - 2 * 2 * gpt.head_parameters
    seconds = 4 * moved / (a100.hbm * a100.hbm_share)
    assert copied - flat == pytest.approx(seconds, rel=1e-6)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Measured(products={(1, 2, 3): 1.0}), r"a product is \(m, n, k, count\)"),
        (lambda: Measured(stretches={"mlp": (1, 1, 1)}), "stretches are block, experts"),
        (lambda: Measured(optimizer=-1.0), "seconds are 0 or more; got -1"),
    ],
)
def test_a_mistake_in_what_was_measured_is_answered(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_messages_between_stages_are_those_of_the_slowest_border():
    card = known("H100 SXM")
    some, all_ = (neighbour(Layout(pp=8, tp=tp), card, 1e8) for tp in (4, 8))
    assert some == all_ > 3 * neighbour(Layout(pp=2, tp=4), card, 1e8)


def test_a_slow_wire_between_stages_is_named_and_not_called_a_bubble(gpt):
    slow = known("H100 SXM", card=1e7)
    found = predict(gpt, slow, Layout(pp=2, tp=8), Batch(8))
    assert max(found.parts, key=found.parts.__getitem__) == "transfer"
    waits = predict(gpt, slow, Layout(pp=2, tp=8, overlap_transfer=False), Batch(8))
    assert waits.seconds > found.seconds


def test_a_groups_ranks_are_as_many_as_there_are_and_latency_counts():
    card = known("H100 SXM")
    assert Group(12).cluster(card).ranks == 12
    later = replace(card, latency_inside=24e-6)
    kind, nbytes = "all_reduce", 1e4
    assert Group(8).seconds(later, kind, nbytes) == Group(8).seconds(card, kind, nbytes) + 24e-6


def test_the_host_runs_ahead_from_forward_into_backward(gpt):
    """Forward passes that are bound by the host, and backward passes that are not, together take the longer of both."""
    free = predict(gpt, known("H100 SXM", launch=0.0), Layout(), Batch(1))
    assert "host" not in free.parts
    launches = 1000
    for launch in (1e-6, 5e-6, 20e-6, 80e-6):
        found = predict(gpt, known("H100 SXM", launch=launch), Layout(), Batch(1))
        assert found.seconds >= free.seconds
        if found.parts.get("host"):
            assert found.seconds > launches * launch
        else:
            assert found.seconds == pytest.approx(free.seconds)


def test_hfu_counts_what_is_computed_twice_and_the_convention_is_named(gpt, a100):
    def rates(model=gpt, **software):
        return predict(model, a100, Layout(), Batch(8, 2), software=Software(**software))

    blocks = 2 * gpt.layers * gpt.layer_parameters()
    scores = 4 * gpt.layers * gpt.queries * gpt.sequence
    whole = gpt.flops_per_token()
    for kind, twice in (("none", 0), ("selective", scores), ("full", blocks + scores)):
        found = rates(attention="unfused", recompute=kind)
        assert found.hfu / found.mfu == pytest.approx(1 + twice / whole)
    found = rates()
    assert "attention counted whole) of 312 TFLOP/s, the dense 16-bit peak" in found.convention
    half = rates(replace(gpt, causal_flops="half"))
    assert half.seconds == found.seconds
    assert half.mfu / found.mfu == pytest.approx(1 - 1.5 * scores / whole)
