"""A prediction adds up, keeps to its limits, and moves the right way."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dtcourse import planner
from dtcourse.pipeline_parallel import one_f_one_b
from dtcourse.planner import Batch, Hardware, Layout, Precision, Range, Software, predict
from dtcourse.planner.kernels import product_seconds

LAYOUTS = [
    (Layout(), 4),
    (Layout(dp_replicate=8), 16),
    (Layout(dp_shard=16, stage=3), 32),
    (Layout(dp_shard=8, stage=2, tp=2), 16),
    (Layout(tp=8, sequence_parallel=True), 8),
    (Layout(cp=4, stage=3, dp_shard=2), 4),
    (Layout(cp=4, context="ulysses"), 4),
    (Layout(pp=4, dp_replicate=2), 16),
    (Layout(pp=4, schedule="interleaved", chunks=2, tp=2), 8),
    (Layout(pp=4, schedule="zb_h1"), 8),
    (Layout(pp=4, schedule="zb_v"), 8),
    (Layout(pp=4, schedule="dualpipe_v"), 8),
    (Layout(pp=4, schedule="gpipe", dp_shard=2, stage=1), 16),
    (Layout(pp=4, schedule="breadth_first", chunks=2), 8),
    (
        Layout(
            pp=4, dp_shard=4, stage=3, tp=8, sequence_parallel=True, reshard_after_forward=False
        ),
        64,
    ),
]


@pytest.mark.parametrize(("layout", "sequences"), LAYOUTS, ids=lambda each: str(each)[:60])
def test_the_parts_of_a_step_add_up_to_it_and_none_is_negative(gpt, layout, sequences):
    for recompute in ("none", "selective", "full"):
        found = predict(
            gpt, "H100 SXM", layout, Batch(sequences), software=Software(recompute=recompute)
        )
        assert sum(found.parts.values()) == pytest.approx(found.seconds, rel=1e-12)
        assert min(found.parts.values()) >= -1e-12
        assert 0 < found.mfu <= found.hfu < 1
        assert len(found.memory) == layout.pp and all(
            v >= 0 for s in found.memory for v in s.values()
        )


def test_alone_with_everything_free_but_products_a_step_takes_operations_over_rate(gpt, a100):
    """No launch, endless memory bandwidth, one large product after the other: only tiles' edges are left."""
    ideal = replace(a100, launch=0.0, hbm=1e20, reached=1.0, sustained=1.0)
    found = predict(
        gpt, ideal, Layout(), Batch(8, 8), software=Software(attention_share=(1.0, 1.0))
    )
    work = {k: v for k, v in found.parts.items() if k in ("products", "attention")}
    assert sum(work.values()) / found.seconds > 0.995  # the rest: no kernel is shorter than 2 us
    bare = found.flops / ideal.peak
    assert bare < found.seconds < 1.12 * bare
    # Without the tables, which are looked up, and with half of attention: the field's 6 N + 12 L h s.
    tokens = 8 * gpt.sequence
    half = 6 * gpt.layers * gpt.queries * gpt.sequence
    tables = 6 * gpt.sequence * gpt.hidden
    expected = tokens * (gpt.flops_per_token() - half - tables)
    assert found.flops == pytest.approx(expected, rel=0.03)


def test_recomputing_all_costs_a_third_more_products_and_saves_activations(gpt, a100):
    batch = Batch(4, 4)
    plain, full = (
        predict(gpt, a100, Layout(), batch, software=Software(recompute=kind))
        for kind in ("none", "full")
    )
    assert full.parts["products"] / plain.parts["products"] == pytest.approx(4 / 3, abs=0.04)
    assert full.memory[0]["activations"] < 0.2 * plain.memory[0]["activations"]
    assert full.mfu < plain.mfu < full.hfu
    early = predict(
        gpt, a100, Layout(), batch, software=Software(recompute="full", early_stop=True)
    )
    assert plain.seconds < early.seconds < full.seconds


def test_a_step_takes_less_on_more_devices_and_each_does_less_well(gpt):
    took = [
        predict(gpt, "H100 SXM", Layout(dp_shard=n, stage=3), Batch(1024)) for n in (8, 64, 512)
    ]
    assert took[0].seconds > took[1].seconds > took[2].seconds
    assert took[0].mfu >= took[1].mfu >= took[2].mfu


@pytest.mark.parametrize(
    ("field", "worse", "part"),
    [
        ("launch", 1e-3, "host"),
        ("hbm", 1e11, "memory"),
        ("card", 1e8, "sharding"),
        ("reached", 0.05, "products"),
    ],
)
def test_what_is_made_worse_is_what_limits_and_the_advice_names_it(gpt, field, worse, part):
    from dtcourse.planner.prediction import ADVICE

    card = Hardware.of("H100 SXM")
    layout, batch = Layout(dp_shard=16, stage=3), Batch(32, 2)
    before, after = (
        predict(gpt, each, layout, batch, software=Software("unfused"))
        for each in (card, replace(card, **{field: worse}))
    )
    assert after.seconds > before.seconds
    assert max(after.parts, key=after.parts.__getitem__) == part
    assert ADVICE[part] in after.why


def test_the_bubble_of_1f1b_is_the_papers_share_and_interleaving_divides_it(gpt):
    one = replace(gpt, vocabulary=256, positions="none")  # ends that weigh nothing
    layout = Layout(pp=4, layers=(8, 8, 8, 8))
    m = 8
    found = predict(one, "H100 SXM", layout, Batch(m))
    work = found.seconds - found.parts["bubble"] - found.parts["optimizer"]
    assert found.parts["bubble"] / work == pytest.approx(3 / m, rel=0.06)  # (p - 1) / m
    by_function = predict(one, "H100 SXM", replace(layout, schedule=one_f_one_b), Batch(m))
    assert by_function.seconds == found.seconds
    two = replace(layout, schedule="interleaved", chunks=2, layers=None)
    assert predict(one, "H100 SXM", two, Batch(m)).parts["bubble"] < 0.65 * found.parts["bubble"]


def test_a_long_pipelined_step_is_as_long_as_its_whole_simulation(gpt, monkeypatch):
    from dtcourse.planner import step

    layout, batch = Layout(pp=4), Batch(70)
    short = predict(gpt, "H100 SXM", layout, batch).seconds
    monkeypatch.setattr(step, "_lengths", lambda s: (s.micro_batches, s.micro_batches))
    assert short == pytest.approx(predict(gpt, "H100 SXM", layout, batch).seconds, rel=1e-9)


def test_ranges_make_an_interval_that_holds_the_likely_step(gpt, a100):
    exact = Software(attention_share=(0.6, 0.5), compiled_launches=1.0, imbalance=1.0, fragmentation=0.05,
                     attention_achieved=1.0)  # fmt: skip
    predict_ = functools.partial(predict, gpt, layout=Layout(), batch=Batch(4), software=exact)
    sure = predict_(a100)
    assert sure.interval == (sure.seconds, sure.seconds)
    unsure = replace(a100, clock=Range(0.7, 1.0, 1.2), launch=Range(0, 15e-6, 20e-6))
    low, high = predict_(unsure).interval
    assert low < sure.seconds < high
    assert high == predict_(replace(a100, clock=0.7, launch=20e-6)).seconds
    assert low == predict_(replace(a100, clock=1.2, launch=0.0)).seconds
    with pytest.raises(ValueError, match="low <= likely <= high"):
        Range(2, 1, 3)


def test_experts_cost_those_that_a_token_goes_to_and_memory_of_all(mixtral):
    from dtcourse.planner.model import Model

    assert mixtral.parameters == pytest.approx(
        46.7e9, rel=0.01
    )  # Mixtral's paper, 2401.04088: 47B, 13B active
    assert mixtral.active_parameters == pytest.approx(12.9e9, rel=0.01)
    dense = Model(**{**vars(mixtral), "experts": 0, "ffn": 2 * 14336})
    layout = Layout(dp_shard=8, stage=3, ep=8)
    moe, plain = (predict(m, "H100 SXM", layout if m.experts else replace(layout, ep=1), Batch(64, 8))
                  for m in (mixtral, dense))  # fmt: skip
    assert moe.flops == pytest.approx(plain.flops, rel=0.02)
    assert moe.parts["experts"] > 0 and "experts" not in plain.parts
    assert moe.memory[0]["optimizer"] > 3 * plain.memory[0]["optimizer"]


def test_products_lose_by_a_last_wave_and_by_the_roofline_and_never_beat_the_measured_best(a100):
    rate = a100.peak * a100.reached * a100.sustained
    per = functools.partial(product_seconds, count=1, hardware=a100)
    assert 2 * 8192**3 / per(8192, 8192, 8192) == pytest.approx(rate, rel=0.08)
    # 108 tiles of 256 x 128 are one wave; a row of tiles more is another
    full, more = per(12 * 256, 9 * 128, 8192), per(13 * 256, 9 * 128, 8192)
    assert more / full > 1.2
    thin = per(16, 4096, 4096)
    assert thin == pytest.approx(2 * (2 * 16 * 4096 + 4096**2) / (a100.hbm * a100.hbm_share))
    for shape in ((64, 64, 64), (1000, 777, 333), (4096, 512, 65536)):
        assert 2 * shape[0] * shape[1] * shape[2] / per(*shape) < rate


def test_eight_bits_and_hidden_messages_help_where_they_should(llama):
    card = Hardware.of("H100 SXM")
    layout, batch = Layout(dp_shard=8, tp=8, stage=3, sequence_parallel=True), Batch(64, 8)
    plain = predict(llama, card, layout, batch)
    eight = predict(llama, card, layout, batch, Precision(eight_bit=True))
    hidden = predict(llama, card, replace(layout, overlap_tensor=0.5), batch)
    assert eight.parts["products"] < 0.75 * plain.parts["products"] < plain.parts["products"]
    assert eight.parts["memory"] > plain.parts["memory"]
    assert hidden.parts["tensor"] == pytest.approx(plain.parts["tensor"] / 2, rel=0.05)


def test_its_files_name_no_torch():
    """What it computes is plain arithmetic; torch comes with what the simulator counts in it."""
    files = sorted(Path(planner.__file__).parent.glob("*.py"))
    assert len(files) > 10
    for file in files:
        nodes = ast.walk(ast.parse(file.read_text()))
        imports = [ast.unparse(n) for n in nodes if isinstance(n, (ast.Import, ast.ImportFrom))]
        assert not [line for line in imports if re.search(r"\btorch\b", line)], file
