"""No bound is above a prediction, also where only what the floor of many layouts counts takes time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtcourse.planner import Batch, Layout, Measured, Model, Precision, Space
from dtcourse.planner.bounds import Bounds
from dtcourse.planner.listing import Asked
from dtcourse.planner.setting import Setting
from dtcourse.planner.step import predict_likely
from tests.planner.conftest import known
from tests.planner.searched import EXPERTS, SOFTWARE, All

# Neither the network nor the host takes time: a floor comes as near to what it bounds as it can.
FREE = known(
    "H100 SXM", launch=0.0, least=0.0, fill=0.0, measured=Measured(collective=lambda *_: 0.0)
)
SMALL = Model(layers=4, hidden=1024, heads=8, vocabulary=1000, sequence=64)
SPACE = Space(
    tp=(1, 2), cp=(1,), pp=(1, 2), schedules=("1f1b",), stages=(0, 3), reshard_after_forward=(True,),
    micro_batches=(1,), recompute=("none", "ops"),
    ep=(1, 2),
)  # fmt: skip
FEW = replace(EXPERTS, sequence=64)
DEVICES, SEQUENCES = 16, 128
EIGHT = Precision(eight_bit=True, gather_8bit=True)


# By case: a model, precision, what the search has not changed, and software.
CASES = {
    "8 bits": (SMALL, EIGHT, Layout(copied=False), SOFTWARE),
    "8 bits, experts": (FEW, EIGHT, Layout(copied=False), SOFTWARE),
    "autocast": (SMALL, Precision("bf16 autocast"), Layout(), SOFTWARE),
    "offload": (
        SMALL,
        Precision(),
        Layout(overlap_transfer=False),
        replace(SOFTWARE, offload=20e9),
    ),
    "expert_tp": (FEW, Precision(), Layout(expert_tp=1), SOFTWARE),
}


@pytest.mark.parametrize("case", CASES)
def test_no_bound_is_above_a_prediction(case):
    model, precision, base, software = CASES[case]
    s = Setting(model, FREE, base, Batch(SEQUENCES), precision, software)
    bounds, everything = Bounds(s, DEVICES), All()
    listing = Asked(SPACE, model, DEVICES, SEQUENCES, base).listing()
    bounds.scan(listing, everything)
    assert len(everything.found) == listing.possible - bounds.large > 40
    for one in everything.found:
        found = predict_likely(
            replace(s, layout=one.layout, batch=one.batch, software=one.software)
        )
        assert one.seconds <= found.seconds * (1 + 1e-9), one
        assert one.nbytes == found.peak_bytes, one
        if one.layout.pp == 1:
            assert one.seconds == pytest.approx(found.seconds, rel=1e-12), one
