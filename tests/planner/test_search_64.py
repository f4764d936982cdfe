"""On 64 devices, eight nodes: what search() finds is the best of predicting every layout of its space."""

from __future__ import annotations

from dataclasses import replace

from dtcourse.planner import Space, search
from dtcourse.planner.step import predict_likely
from tests.planner.searched import CARD, MODEL, SOFTWARE, listed, settings

SPACE = Space(
    cp=(1,), stages=(0, 1, 3), reshard_after_forward=(True,), sequence_parallel=(True, False),
    schedules=("1f1b", "zb_v"), chunks=(2,), micro_batches=(1,), recompute=("none",),
)  # fmt: skip
# A network between nodes so slow, and memory so small, that the best layout needs tensor ranks, a pipeline and ZeRO.
WIDE = replace(MODEL, layers=16, hidden=4096, heads=64)
SLOW = replace(CARD, memory=7e9, card=5e9)


def test_the_best_on_64_devices_is_the_best_of_all_predictions():
    devices, sequences = 64, 128
    bounds, listing = listed(WIDE, SPACE, SLOW, devices=devices, sequences=sequences)
    every = {(s.layout, s.batch, s.software): predict_likely(s) for s in settings(bounds, listing)}
    fitting = {key: one for key, one in every.items() if one.fits}
    assert 100 < len(fitting) < len(every)
    best = min(fitting, key=lambda key: fitting[key].seconds)
    assert best[0].pp > 1 and best[0].tp > 1 and best[0].stage
    found = search(
        WIDE, SLOW, devices, sequences, software=SOFTWARE, space=SPACE, predictions=5, prove=True
    )
    assert found.proven and found.listing.possible == len(every)
    assert found.best.key == best and found.best.seconds == fitting[best].seconds
    assert len(found.choices) < len(every) / 4
