"""What search() says: why not another layout, why none, and which mistakes it refuses."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dtcourse.pipeline_parallel import gpipe
from dtcourse.planner import Batch, Layout, Precision, Range, Space, search
from dtcourse.planner.prediction import ADVICE
from dtcourse.planner.setting import Setting
from dtcourse.planner.step import predict_likely
from dtcourse.planner.why_not import _longer
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
    assert f" of what is more is {ADVICE[max(more, key=more.__getitem__)]}." in slow
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
    assert [line for line in said.splitlines() if " MFU " in line] == [
        *map(str, dense.choices[:10])
    ]
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
        ({"devices": 0}, "devices is a whole number, at least 1; got 0"),
        ({"batch": 0}, "batch is a whole number, at least 1; got 0"),
        ({"predictions": 0}, "predictions is a whole number, at least 1; got 0"),
        ({"devices": 7, "batch": 3, "space": Space(pp=(1,))}, r"none is possible.*sequences\(3\) is no multiple"),
        ({"devices": 64.0}, "devices is a whole number, at least 1; got 64.0"),
        ({"devices": "64"}, "devices is a whole number, at least 1; got '64'"),
        ({"layout": Layout(layers=(4, 4), pp=2)}, "divides the layers evenly"),
        ({"layout": Layout(schedule=gpipe)}, "schedules by name"),
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
        ({"tp": 8}, r"tp is all values to try, as \(8,\); got 8"),
        ({"recompute": "none"}, r"recompute is all values to try, as \('none',\)"),
        ({"micro_batches": None}, "micro_batches is all values to try"),
        ({"pp": (2.0,)}, r"pp is one number or more, each at least 1; got \(2.0,\)"),
        ({"recompute": ()}, "recompute has at least one value to try"),
        ({"recompute": ("half",)}, "recompute is one of"),
        ({"stages": (4,)}, "stages 0 to 3; got 4"),
        ({"schedules": ("pipe",)}, "no schedule 'pipe'"),
    ],
)
def test_a_space_without_sense_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Space(**options)


def test_what_is_given_twice_is_counted_once_and_what_divides_nothing_is_named():
    space = Space(tp=(1, 1, 3), ep=(2,), pp=(1,), micro_batches=(1, 1), recompute=("none",) * 2)
    once = Space(tp=(1,), pp=(1,), micro_batches=(1,), recompute=("none",))
    _, listing = listed(MODEL, space)
    assert listing.layouts == listed(MODEL, once)[1].layouts
    assert "tp 3 of 8 devices" in str(listing) and "ep 2 of a model without experts" in str(listing)


ONE_WAY = Space(
    tp=(1,), cp=(1,), pp=(1,), stages=(0, 3), micro_batches=(1,), recompute=("none", "full")
)


def test_what_may_not_fit_is_said_and_left_out_where_that_is_asked_for():
    """Between the bytes that are likely and the most there may be."""
    unsure = replace(SOFTWARE, fragmentation=Range(0.0, 0.05, 0.6))
    asked = {"devices": 8, "batch": 8, "software": unsure, "space": ONE_WAY}
    roomy = search(MODEL, replace(CARD, memory=80e9), **asked)
    whole = roomy.predict(roomy.best)
    assert "may not fit" not in str(roomy)
    card = replace(CARD, memory=(roomy.best.nbytes + whole.bytes_interval[1]) / 2)
    likely, sure = (search(MODEL, card, **asked, sure=each) for each in (False, True))
    least, most = (nbytes / 2**30 for nbytes in whole.bytes_interval)
    assert likely.best.key == roomy.best.key
    assert (
        f"{least:.1f} to {most:.1f} GiB, over what is only known as a range, and may not fit"
        in str(likely)
    )
    assert all(sure.predict(each).surely_fits for each in sure.choices)
    assert not all(likely.predict(each).surely_fits for each in likely.choices)
    assert "may not fit" not in str(sure)
    best = likely.best
    said = sure.why_not(best.layout, best.batch.micro_batch, best.software.recompute)
    assert (
        f"It may not fit: over what is only known as a range it needs {least:.1f} to {most:.1f}"
        in said
    )
    with pytest.raises(ValueError, match=r"none of .* surely fits"):
        search(MODEL, replace(card, memory=2.2e9), **asked, sure=True)


def test_a_layout_that_is_not_in_the_space_is_compared_as_the_search_was():
    """Its micro-batch and overlaps are the search's, where nothing else is said."""
    base = Layout(overlap_data=False, copied=False)
    space = replace(ONE_WAY, micro_batches=(2,), stages=(3,))
    card = replace(CARD, memory=20e9)
    found = search(MODEL, card, 8, 32, software=SOFTWARE, space=space, layout=base)
    best = found.best
    assert "as little as the best" in found.why_not(
        Layout(
            dp_shard=best.layout.dp_shard,
            dp_replicate=best.layout.dp_replicate,
            stage=3,
            reshard_after_forward=best.layout.reshard_after_forward,
        )
    )
    assert "not in the space that was searched" in found.why_not(best.layout, micro_batch=4)


def test_what_was_tried_is_named_where_nothing_helps_alone():
    software = replace(SOFTWARE, recompute="none")
    layout = Layout(dp_shard=4, pp=2, schedule="gpipe", stage=3, reshard_after_forward=False)

    def needed(micro_batch, **changes):
        s = Setting(MODEL, CARD, layout, Batch(SEQUENCES, micro_batch), Precision(), software)
        return predict_likely(replace(s, **changes)).peak_bytes

    lean = replace(layout, schedule="1f1b", reshard_after_forward=True)
    alone, together = (
        needed(1),
        needed(1, layout=lean, software=replace(software, recompute="full")),
    )
    assert together < alone < needed(4)
    card = replace(CARD, memory=(alone + together) / 2)
    options = {"software": SOFTWARE, "space": SPACE, "predictions": 1}
    said = search(MODEL, card, DEVICES, SEQUENCES, **options).why_not(layout, 4, "none")
    for name in (
        "recompute selective", "recompute full", "micro-batch 1", "schedule 1f1b", "reshard_after_forward"
    ):  # fmt: skip
        assert re.search(rf"Alone none of these is enough: .*{name} \(\d\.\d GiB\)", said), name
    assert said.endswith("; all together are.") and "(ZeRO" not in said
    # At its leanest nothing is left to try.
    tiny = replace(CARD, memory=0.99 * together)
    said = search(MODEL, tiny, DEVICES, SEQUENCES, **options).why_not(lean, 1, "full")
    assert "are at their leanest: more of tp, pp or cp" in said


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(3.6, "3.6 times"), (1.357, "35.7% more than"), (1.0001, "less than 0.1% more than")],
)
def test_how_much_longer(ratio, said):
    assert _longer(ratio) == said
