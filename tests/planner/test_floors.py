"""No floor of many layouts is above the prediction of one of them, also where only what it counts takes time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtcourse.planner import Batch, Layout, Measured, Model, Precision, Space
from dtcourse.planner.bounds import Bounds
from dtcourse.planner.listing import Asked
from dtcourse.planner.setting import Setting
from dtcourse.planner.step import predict_likely
from tests.planner.conftest import known
from tests.planner.searched import EXPERTS, SOFTWARE

# Neither the network nor the host takes time: a floor comes as near to what it bounds as it can.
FREE = known(
    "H100 SXM", launch=0.0, least=0.0, fill=0.0, measured=Measured(collective=lambda *_: 0.0)
)
SMALL = Model(layers=4, hidden=1024, heads=8, vocabulary=1000, sequence=64)
SPACE = Space(
    tp=(1, 2), cp=(1, 2), pp=(1, 2), schedules=("1f1b",), stages=(0, 3), micro_batches=(1,), recompute=("none", "ops"),
)  # fmt: skip
DEVICES, SEQUENCES = 16, 128
EIGHT = Precision(eight_bit=True, gather_8bit=True)


@pytest.mark.parametrize(
    ("model", "precision", "base", "software"),
    [
        (SMALL, EIGHT, Layout(copied=False), SOFTWARE),
        (replace(EXPERTS, sequence=64), EIGHT, Layout(copied=False), SOFTWARE),
        (SMALL, Precision("bf16 autocast"), Layout(), SOFTWARE),
        (SMALL, Precision(), Layout(overlap_transfer=False), replace(SOFTWARE, offload=20e9)),
    ],
    ids=["8 bits", "8 bits, experts", "autocast", "offload"],
)  # fmt: skip
def test_no_floor_is_above_a_prediction(model, precision, base, software):
    s = Setting(model, FREE, base, Batch(SEQUENCES), precision, software)
    bounds = Bounds(s, DEVICES)
    listing = Asked(SPACE, model, DEVICES, SEQUENCES, base).listing()
    ratios = []
    for family, slices in listing.slices.items():
        floor = bounds.of_family(family)
        for each in slices:
            least = max(floor, bounds.of_slice(family, each, each.schedules))
            for cut in each.cuts:
                s = bounds.setting(family, pp=each.pp, **cut._asdict())
                ratios.append(least / predict_likely(s).seconds)
    assert 0.4 < max(ratios) <= 1 + 1e-9
