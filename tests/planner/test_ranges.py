"""What is only known as a range: which numbers may be one, and what is said where the ends differ."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from dtcourse.planner import Batch, Hardware, Layout, Model, Precision, Range, Software, predict
from tests.planner.conftest import known


def test_estimates_of_the_card_are_ranges():
    card = Hardware.of("H100 SXM")
    for name in ("fill", "least", "channels"):
        assert isinstance(getattr(card, name), Range), name
    assert isinstance(Software().collective_launches, Range)


def test_messages_that_take_more_multiprocessors_are_the_slower_end(gpt):
    card = known("H100 SXM", channels=Range(8, 16, 32))
    found = predict(gpt, card, Layout(dp_shard=8, stage=3), Batch(8))
    assert found.interval[0] < found.seconds < found.interval[1]


GIVEN = {
    "model": Model(layers=4, hidden=64, heads=4),
    "hardware": known("H100 SXM"),
    "layout": Layout(),
    "batch": Batch(8),
    "precision": Precision(),
    "software": Software(),
}


def _any(what, field):
    return next(each for each in fields(GIVEN[what]) if each.name == field).type == "Any"


NUMBERS = [
    (name, field.name)
    for name, each in GIVEN.items()
    for field in fields(each)
    if field.name not in ("measured", "attention_share", "layers", "axes", "schedule")
    and not isinstance(getattr(each, field.name), (str, bool))
]


@pytest.mark.parametrize(("what", "field"), NUMBERS, ids="{0[0]}.{0[1]}".format)
def test_a_range_works_or_is_refused_with_a_sentence(what, field):
    if not (what == "model" and field in ("vocabulary", "sequence")) and not _any(what, field):
        with pytest.raises(ValueError, match=rf"{field} is one number"):
            replace(GIVEN[what], **{field: Range(1, 1, 1)})
        return
    changed = replace(GIVEN[what], **{field: Range(1, 1, 1)})
    found = predict(**(GIVEN | {what: changed}))
    one = predict(**(GIVEN | {what: replace(GIVEN[what], **{field: 1})}))
    assert found.seconds == one.seconds
    assert found.interval == pytest.approx(one.interval, rel=1e-12)


def test_no_offload_is_no_end_of_a_range_of_rates():
    with pytest.raises(ValueError, match=r"offload.*0"):
        Software(offload=Range(0, 1e9, 2e9))


def test_what_fits_at_its_likely_bytes_alone_may_not_fit(gpt):
    layout, batch = Layout(dp_shard=8, stage=3), Batch(8)
    found = predict(gpt, "H100 SXM", layout, batch)
    least, most = found.bytes_interval
    assert found.fits and found.surely_fits and "fit" not in str(found)
    between = predict(
        gpt, Hardware.of("H100 SXM", memory=(found.peak_bytes + most) / 2), layout, batch
    )
    assert between.fits and not between.surely_fits and "may not fit" in str(between)
    unsure = Range(least, 1.01 * found.peak_bytes, 80e9)
    assert not predict(gpt, Hardware.of("H100 SXM", memory=unsure), layout, batch).surely_fits


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Software(attention_achieved=0), r"attention_achieved is above 0"),
        (lambda: Software(compiled_launches=3), r"compiled_launches is between 0 and 1"),
        (lambda: Software(compiled_launches=-1), r"compiled_launches is between 0 and 1"),
        (lambda: Software(attention_share=(0.5,)), r"attention_share is two parts"),
        (lambda: Software("unfused", attention_share=(0.5, 0.5)), r"attention_share is of fused"),
        (lambda: Precision(tf32=True), r"tf32 is of 32-bit"),
        (lambda: Layout(tp=2, expert_tp=0), r"expert_tp is at least 1"),
        (lambda: Layout(tp=2, expert_tp=-1, sequence_parallel=True), r"expert_tp is at least 1"),
        (lambda: Layout(dp_shard=2, tp=4, ep=8, expert_tp=1, sequence_parallel=True,
                        axes=("pp", "dp_replicate", "tp", "dp_shard", "cp")), r"tp.*innermost"),
        (lambda: Model(layers=2, hidden=8, heads=2, shared=1), r"shared\(1\).*experts"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_answered(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_widths_are_of_layers_that_there_are(mixtral):
    only = replace(mixtral, ffn=1001, expert_ffn=1024)
    assert predict(only, "H100 SXM", Layout(tp=2), Batch(8)).seconds > 0
    uneven = replace(mixtral, expert_ffn=1001, shared=1)
    layout = Layout(tp=2, expert_tp=1, sequence_parallel=True)
    with pytest.raises(ValueError, match=r"shared\(1\) x expert_ffn\(1001\).*tp\(2\)"):
        predict(uneven, "H100 SXM", layout, Batch(8))


def test_ulysses_copies_keys_that_are_fewer_than_ranks(llama):
    layout = Layout(cp=16, context="ulysses")
    assert predict(llama, "H100 SXM", layout, Batch(4)).seconds > 0
    with pytest.raises(ValueError, match=r"kv_heads\(8\)"):
        predict(
            replace(llama, heads=48, head_dim=128), "H100 SXM", replace(layout, cp=12), Batch(4)
        )
