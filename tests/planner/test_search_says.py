"""What search() says: why not another layout, why none, and which mistakes it refuses."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dtcourse.planner import Batch, Layout, Precision, Space, search
from dtcourse.planner.prediction import ADVICE
from dtcourse.planner.setting import Setting
from dtcourse.planner.step import predict_likely
from tests.planner.searched import (
    CARD,
    DEVICES,
    MODEL,
    SEQUENCES,
    SOFTWARE,
    SPACE,
    listed,
    settings,
)


@pytest.fixture(scope="module")
def dense():
    return search(MODEL, CARD, DEVICES, SEQUENCES, software=SOFTWARE, space=SPACE, predictions=5)


def test_why_not_names_the_equation_the_bytes_or_the_seconds(dense):
    assert "= 16, and there are 8 devices" in dense.why_not(Layout(dp_shard=16, stage=3))
    chunked = Layout(pp=8, schedule="interleaved", chunks=2)
    assert "layers(8) are fewer than pp(8) x chunks = 16 stages" in dense.why_not(chunked)
    # All states on each, and nothing recomputed: more than there is; what would help is said, with its bytes.
    large = dense.why_not(Layout(dp_replicate=8), micro_batch=2, recompute="none")
    assert re.search(
        r"does not fit: pipeline rank 0 needs \d+\.\d GiB \(.*\), and a device has 4\.7", large
    )
    assert re.search(r"It would with .*dp_shard 8 \(ZeRO 1\) \(\d\.\d GiB, .* s\)", large)
    # Slower, by how much and through what: the differences are those of the predictions.
    layout = Layout(pp=8)
    slow = dense.why_not(layout, micro_batch=1, recompute="full")
    software = replace(SOFTWARE, recompute="full")
    s = Setting(MODEL, CARD, layout, Batch(SEQUENCES, 1), Precision(), software)
    found = predict_likely(s)
    more = {
        kind: took - dense.best.prediction.parts.get(kind, 0.0)
        for kind, took in found.parts.items()
    }
    assert f"bubble {more['bubble']:+.3g} s" in slow
    assert f"{found.seconds / dense.best.seconds:.3g} times the best's" in slow
    assert f"Most of it is {ADVICE[max(more, key=more.__getitem__)]}." in slow
    best = dense.best
    assert "as little as the best" in dense.why_not(
        best.layout, best.batch.micro_batch, best.software.recompute
    )


def test_it_prints_the_space_and_the_fastest_and_their_interval(dense):
    said = str(dense)
    assert (
        f"{dense.listing.layouts:,} layouts, of which {dense.listing.possible:,} are possible"
        in said
    )
    assert f"{dense.best.seconds:.4g} s" in said and "recompute" in said
    wide = search(MODEL, "A100 SXM", DEVICES, SEQUENCES, space=SPACE, predictions=1)
    low, high = wide.predict(wide.best).interval
    assert low < wide.best.seconds < high
    assert wide.best.prediction.interval == (wide.best.seconds, wide.best.seconds)


def test_nothing_fits_says_the_limit_and_what_comes_nearest():
    tight = replace(CARD, memory=1.6e9)
    with pytest.raises(ValueError, match=r"none of [\d,]+ possible layouts fits") as raised:
        search(MODEL, tight, DEVICES, SEQUENCES, software=SOFTWARE, space=SPACE)
    bounds, listing = listed(MODEL, SPACE)
    least = min(bounds.nbytes(s) for s in settings(bounds, listing) if s.batch.micro_batch == 1)
    needs = float(re.search(r"needs (\d+\.\d) GiB", str(raised.value)).group(1))
    assert least / 2**30 - 0.05 <= needs <= 1.15 * least / 2**30
    assert "a device has 1.5" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"devices": 0}, "devices is at least 1; got 0"),
        ({"batch": 0}, "batch is at least 1; got 0"),
        ({"predictions": 0}, "predictions is at least 1; got 0"),
        ({"devices": 7, "batch": 3, "space": Space(pp=(1,))}, r"none is possible.*sequences\(3\) is no multiple"),
        ({"space": Space(tp=(3,))}, "no degree divides them"),
        ({"hardware": "GH200"}, "no network between nodes is known"),
        ({"layout": Layout(axes=("dp_replicate", "pp", "dp_shard", "cp", "tp"))}, "axes in the order pp"),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_by_its_numbers(options, said):
    asked = {"model": MODEL, "hardware": "A100 SXM", "devices": 8, "batch": 16, **options}
    with pytest.raises(ValueError, match=re.compile(said, re.DOTALL)):
        search(**asked)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tp": (0, 1)}, r"tp is one number or more, each at least 1; got \(0, 1\)"),
        ({"recompute": ()}, "recompute has at least one value to try"),
        ({"recompute": ("half",)}, "recompute is one of"),
        ({"stages": (4,)}, "stages 0 to 3; got 4"),
        ({"schedules": ("pipe",)}, "no schedule 'pipe'"),
    ],
)
def test_a_space_without_sense_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Space(**options)
