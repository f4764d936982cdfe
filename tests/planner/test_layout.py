"""What cannot be says which equation fails; what is not known says what is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtcourse.planner import Batch, Hardware, Layout, Model, Precision, Software, predict
from dtcourse.planner.layout import layers_of

IMPOSSIBLE = [
    ({"tp": 3}, 8, r"heads\(32\) is no multiple of tp\(3\)"),
    ({"dp_shard": 3, "dp_replicate": 2}, 8, r"sequences\(8\) is no multiple of dp_replicate\(2\) x dp_shard\(3\)"),
    ({"cp": 3}, 8, r"sequence\(2048\) is no multiple of cp\(3\)"),
    ({"pp": 64}, 8, r"layers\(32\) are fewer than pp\(64\)"),
    ({"pp": 2, "layers": (8, 8)}, 8, r"8 \+ 8 = 16"),
    ({"ep": 2, "dp_shard": 2}, 8, r"ep\(2\) gives out experts, and the model has none"),
    ({"cp": 4, "tp": 1, "dp_shard": 1}, 2, r"sequence\(2052\) is no multiple of cp\(4\) x 2 parts per rank"),
    ({"pp": 4, "schedule": "dualpipe_v"}, 7, r"= 7 micro-batches on pp\(4\): .* needs 8 micro-batches"),
    ({"pp": 4, "schedule": "interleaved", "chunks": 2}, 9, r"= 9 micro-batches on pp\(4\): .* 2 equal rounds"),
    ({"cp": 8, "tp": 8, "context": "ulysses"}, 8, r"heads\(32\) is no multiple of tp\(8\) x cp\(8\)"),
    ({"pp": 2, "schedule": "pipe"}, 8, "no schedule 'pipe'; there are 1f1b"),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "sequences", "said"), IMPOSSIBLE, ids=lambda each: str(each))
def test_an_impossible_layout_says_which_equation_fails(gpt, layout, sequences, said):
    with pytest.raises(ValueError, match=said):
        model = replace(gpt, sequence=2052) if "2052" in said else gpt
        predict(model, "H100 SXM", Layout(**layout), Batch(sequences))


def test_the_devices_there_are_are_held_against_the_product(gpt):
    with pytest.raises(ValueError, match=r"pp\(2\) x .* x tp\(4\) = 8, and there are 16 devices"):
        predict(gpt, "H100 SXM", Layout(pp=2, tp=4), Batch(8), devices=16)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Layout(dp_shard=4, ep=3), r"dp_shard\(4\) x cp\(1\) = 4 is no multiple of ep\(3\)"),
        (lambda: Layout(tp=0), "tp is at least 1; got 0"),
        (lambda: Layout(sequence_parallel=True), "tp is 1"),
        (lambda: Layout(stage=4), "stages 0 to 3; got 4"),
        (lambda: Layout(context="star"), "got 'star'"),
        (lambda: Layout(tp=2, overlap_tensor=1.5), "overlap_tensor is between 0 and 1; got 1.5"),
        (lambda: Layout(pp=2, layers=(40, -8)), r"at least 1 layer.*got 40 \+ -8"),
        (lambda: Layout(schedule="nonsense"), "no schedule 'nonsense'"),
        (lambda: Layout(pp=4, chunks=2), r"chunks\(2\) are of interleaved and breadth_first"),
        (lambda: Layout(bucket=0), "bucket is above 0"),
        (lambda: Layout(dp_shard=2, dp_replicate=2, tp=2, axes=("pp", "dp_shard", "tp", "cp", "dp_replicate")),
         "dp_replicate, dp_shard, cp are one group here"),
        (lambda: Batch(0), "sequences is at least 1; got 0"),
        (lambda: Batch(8, 0), "micro_batch is at least 1; got 0"),
        (lambda: Model(layers=2, hidden=96, heads=3, kv_heads=0), "kv_heads is at least 1"),
        (lambda: Model(layers=2, hidden=96, heads=3, ffn=-5), "ffn is at least 1"),
        (lambda: Model(layers=2, hidden=96, heads=3, shared=-1), "shared is 0 or more"),
        (lambda: Model(layers=2, hidden=96, heads=3, experts=2, top_k=1, moe_every=4), "leaves no layer of 2"),
        (lambda: Software(attention_share=(0, 0)), "attention_share is above 0"),
        (lambda: Software(offload=-1), "offload is 0 or more; got -1"),
        (lambda: Software(recompute_every=4), r"recompute_every\(4\) is of recompute='full'"),
        (lambda: Precision(compute=3), "compute is 1, 2, 4 or 8 bytes; got 3"),
        (lambda: Precision("fp32", eight_bit=True), "got compute=4"),
        (lambda: replace(Hardware.of("H100 SXM"), reached=1.5), "reached is a part, at most 1; got 1.5"),
        (lambda: replace(Hardware.of("H100 SXM"), clock=0), "clock is above 0"),
        (lambda: replace(Hardware.of("H100 SXM"), oversubscription=0.1), "oversubscription is 1"),
        (lambda: Layout(axes=("pp", "tp")), "once"),
        (lambda: Model(layers=2, hidden=100, heads=3), r"hidden\(100\) is no multiple of heads\(3\)"),
        (lambda: Model(layers=2, hidden=96, heads=3, kv_heads=2), "no multiple of kv_heads"),
        (lambda: Model(layers=2, hidden=96, heads=3, experts=2, top_k=3), "top_k is between 1 and"),
        (lambda: Software(attention="slow"), "got 'slow'"),
        (lambda: Precision("int4"), "no precision 'int4'"),
        (lambda: Hardware.of("H100 SXM", network="string"), "no network 'string'; there are"),
        (lambda: replace(Hardware.of("H100 SXM"), hbm=0), "hbm is above 0"),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_by_its_numbers(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_unknown_hardware_lists_what_it_needs_and_numbers_do_instead(gpt):
    with pytest.raises(
        ValueError,
        match=r"V100.*A100 SXM.*peak, memory, hbm, sms, inside, like.*node_size",
    ):
        predict(gpt, "V100", Layout(), Batch(8))
    v100 = Hardware(peak=125e12, memory=32e9, hbm=0.9e12, sms=80, inside=150e9, like="A100")
    found = predict(gpt, v100, Layout(tp=8), Batch(8))
    assert found.seconds > 2 * predict(gpt, "A100 SXM", Layout(tp=8), Batch(8)).seconds


@pytest.mark.parametrize(
    "name", ["A100 SXM", "A100 SXM 40", "H100 SXM", "H200 SXM", "GH200", "B200", "GB200"]
)
def test_named_cards_have_plausible_figures(name):
    card = Hardware.of(name)
    assert 0.6 < card.reached < 0.95 and 35e9 < card.memory < 200e9 and 1.5e12 <= card.hbm <= 8e12


def test_kv_heads_are_cut_or_copied_and_nothing_between():
    odd = Model(layers=4, hidden=1536, heads=24, kv_heads=6)
    with pytest.raises(ValueError, match=r"kv_heads\(6\) and tp\(4\) neither is a multiple"):
        predict(odd, "H100 SXM", Layout(tp=4), Batch(8))


def test_long_interleaved_steps_with_uneven_rounds_are_simulated_whole(gpt):
    """136 micro-batches are 8 rounds of 17: no shorter step has these."""
    layout = Layout(pp=16, schedule="interleaved", chunks=2)
    found = predict(gpt, Hardware.of("H100 SXM"), layout, Batch(136))
    assert found.seconds > predict(gpt, "H100 SXM", layout, Batch(128)).seconds


def test_layers_are_given_out_evenly_and_the_ends_are_not_the_longer(gpt):
    assert layers_of(gpt, Layout(pp=4)) == [8, 8, 8, 8]
    uneven = layers_of(gpt, Layout(pp=6))
    assert sum(uneven) == 32 and max(uneven) - min(uneven) == 1 and uneven[0] == uneven[-1] == 5
