"""A model, a cluster and a space that tests of the planner's search share."""

from __future__ import annotations

import itertools
from dataclasses import replace

from dtcourse.planner import Batch, Layout, Model, Precision, Software, Space
from dtcourse.planner.bounds import Bounds
from dtcourse.planner.listing import Asked
from dtcourse.planner.setting import Setting
from tests.planner.conftest import known

# Small enough to predict every layout of 8 devices, with so little memory that a part of them does not fit.
MODEL = Model(layers=8, hidden=1024, heads=16, vocabulary=50304, sequence=1024)
CARD = known("A100 SXM", memory=5e9)
SPACE = Space(
    cp=(1,), schedules=("1f1b", "interleaved", "gpipe", "zb_h1", "zb_v"), chunks=(2,), micro_batches=(1, 4),
    recompute=("none", "full"),
)  # fmt: skip
EXPERTS = replace(MODEL, layers=4, ffn=2048, experts=4, top_k=2, moe_every=2)
FEW = Space(
    schedules=("1f1b", "zb_v"), micro_batches=(1,), recompute=("selective",), stages=(0, 1, 3)
)
SOFTWARE = Software(
    imbalance=1.0, attention_achieved=1.0, compiled_launches=1.0, fragmentation=0.05, collective_launches=2.0,
)  # fmt: skip
DEVICES, SEQUENCES = 8, 16
# By case: a model, a space, and memory that some of its layouts have no room in.
CASES = {"dense": (MODEL, SPACE, CARD), "experts": (EXPERTS, FEW, replace(CARD, memory=4e9))}


class All:
    """Keeps whatever fits."""

    def __init__(self):
        self.found = []

    def hopeless(self, seconds, nbytes):
        return False

    def offer(self, one):
        self.found.append(one)


def listed(model, space, card=CARD, devices=DEVICES, sequences=SEQUENCES):
    base = Setting(model, card, Layout(), Batch(sequences), Precision(), SOFTWARE)
    return Bounds(base, devices), Asked(space, model, devices, sequences, Layout()).listing()


def settings(bounds, listing):
    """One for each layout that is listed."""
    for family, slices in listing.slices.items():
        for each in slices:
            for cut, (name, chunks) in itertools.product(each.cuts, each.schedules):
                yield bounds.setting(
                    family, pp=each.pp, schedule=name, chunks=chunks, **cut._asdict()
                )
