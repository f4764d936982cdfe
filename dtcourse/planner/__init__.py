"""A model of a cluster: how long a training step takes there, how much memory, and what limits it.

    from dtcourse.planner import Batch, Hardware, Layout, Model, predict, search

    llama = Model(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, gated=True, tied=False, biases=False,
                  positions="rotary", vocabulary=128256, sequence=8192)
    print(predict(llama, "H100 SXM", Layout(dp_shard=64, stage=3), Batch(sequences=128)))
    print(search(llama, "H100 SXM", devices=64, batch=128))

Read in this order:

model.py       a Transformer's sizes, and its parameters
measured.py    what somebody has measured, in place of the planner's own
hardware.py    accelerators and wires, by name or by numbers
layout.py      how the model is cut
impossible.py  which equation fails where it cannot be
software.py    attention, fusion, precision, recomputation
ranges.py      what a source does not say
setting.py     all of this in one object
kernels.py     seconds of a kernel from its shape and its bytes
block.py       the kernels of a block
ends.py        those of the embedding and of the head
network.py     the ranks of an axis as a cluster; what a collective costs is the simulator's
messages.py    what is sent while a micro-batch is computed
sharding.py    what data parallelism sends, and how much of it is hidden
segments.py    a stretch of work: the device's seconds, or the host's
memory.py      bytes of a block, and of a stage's rank
gathers.py     sharded parameters in a micro-batch, behind what is computed meanwhile
alike.py       which layouts have the same blocks
stage.py       a pipeline's stage
pipelines.py   a schedule's ranks, what they keep, the least that it takes: before it is made
step.py        predict(): all stages, by the pipeline's schedule
prediction.py  what it says
runs.py        published runs that it is held against
space.py       which layouts there are for so many devices
listing.py     the same, counted: what is possible, and which equation refuses the rest
pieces.py      stages that are alike
keepers.py     what is kept of many layouts: the fastest, or those to which none is better in time and memory
bounds.py      closed forms: bytes, and seconds that no prediction is below
found.py       what a search has found
search.py      search(): the fastest layouts that fit
why_not.py     why another one is not taken, in words
unequal_work.py  layers' costs and bytes, and a plan for ranks that are not alike
unequal.py     choose(): layouts by what each rank was measured to do, and what its memory holds

No constant is for one model. What was fitted, to which runs, and how well it does on what it was not fitted to, prints
`python benchmarks/planner.py`.
"""

from __future__ import annotations

from dtcourse.planner.found import Choice, Found
from dtcourse.planner.hardware import Hardware
from dtcourse.planner.layout import Batch, Layout
from dtcourse.planner.measured import Measured
from dtcourse.planner.model import Model
from dtcourse.planner.prediction import Prediction
from dtcourse.planner.ranges import Range
from dtcourse.planner.search import search
from dtcourse.planner.software import Precision, Software
from dtcourse.planner.space import Space
from dtcourse.planner.step import predict

__all__ = [
    "Batch",
    "Choice",
    "Found",
    "Hardware",
    "Layout",
    "Measured",
    "Model",
    "Precision",
    "Prediction",
    "Range",
    "Software",
    "Space",
    "predict",
    "search",
]
