"""Saved on any layout and loaded on any other: values bit for bit, and training goes on as in one process.

One table: of pairs of techniques, of a pipeline with another one, of tensor parallelism with experts, of all axes at
once. What a checkpoint holds, and damaged ones: test_checkpoints.py.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dtcourse import launch
from dtcourse.pipeline_parallel import interleaved_1f1b
from dtcourse.verify import compare
from tests.hybrid import layouts as hybrid_layouts
from tests.hybrid.conftest import ranks_that_stay  # noqa: F401
from tests.pairs import layouts, micro_batches, pipelines
from tests.pairs.layouts import EXPERTS, GPT2, LLAMA, Layout, used
from tests.pairs.micro_batches import Alone
from tests.pairs.pipelines import Piped
from tests.pairs.saving import Hybrid, read, write
from tests.pairs.tensor_experts import GELU, SWIGLU, Both

pytestmark = pytest.mark.usefixtures("ranks_that_stay")

STEPS = 2
FULL, FLAT = "fully_shard", "FullyShardedDataParallel"
# Without the gates' loss, which is about the samples that are together in a micro-batch: one truth for all layouts.
MIXTURE = replace(hybrid_layouts.MIXTURE, balancing=0.0)
PIPED_EXPERTS = pipelines.EXPERTS

PAIRS = [
    (GPT2, Layout(FULL, "tensor", (2, 2)), Layout(FLAT, "tensor", (2, 2))),
    (LLAMA, Layout(FLAT, "tensor", (2, 2)), Layout(FULL, "nothing", (3, 1))),
    (GPT2, Layout(FULL, "nothing", (3, 1)), Layout(FULL, "tensor", (2, 2))),
    (LLAMA, Layout("nothing", "tensor", (1, 2)), Layout(FLAT, "tensor", (2, 2))),
    (EXPERTS, Layout(FLAT, "expert", (2, 2)), Layout(FULL, "expert", (2, 2))),
    (EXPERTS, Layout(FULL, "expert", (2, 2)), Layout("nothing", "expert", (1, 4))),
    (GPT2, Layout("ZeRO-1", "tensor", (2, 2)), Layout(FULL, "sequence", (2, 2))),
    (GPT2, Layout(FLAT, "tensor", (2, 2)), Layout("ZeRO-2", "nothing", (3, 1))),
    (LLAMA, Layout("ZeRO-2", "sequence", (2, 2)), Layout("ZeRO-1", "tensor", (3, 2))),
    (EXPERTS, Layout("ZeRO-1", "expert", (2, 2)), Layout(FULL, "expert", (2, 2))),
    (EXPERTS, Layout("nothing", "expert", (1, 4)), Layout("ZeRO-1", "expert", (2, 2))),
    (GPT2, Layout("ZeRO-1", "nothing", (2, 1)), Layout("nothing", "nothing", (1, 1))),
    (GPT2, Piped(FULL, "1F1B"), Alone()),
    (GPT2, Alone(), Piped(FLAT, "1F1B")),
    (GPT2, Piped(FLAT, "GPipe"), Piped("tensor", "1F1B")),
    (GPT2, Piped("tensor", "1F1B"), Piped(FULL, "1F1B", (2, 3))),
    (GPT2, Piped("sequence", "interleaved"), Piped("ZeRO-2", "1F1B", (3, 2))),
    (GPT2, Piped("ZeRO-2", "interleaved"), Piped("ZeRO-1", "GPipe", (2, 3))),
    (GPT2, Piped("ZeRO-1", "1F1B"), Alone()),
    (PIPED_EXPERTS, Piped("expert", "1F1B", (2, 3)), Piped("expert", "interleaved")),
    (PIPED_EXPERTS, Piped("expert", "interleaved"), Alone(2)),
    (PIPED_EXPERTS, Alone(2), Piped("expert", "GPipe")),
    (GELU, Both((1, 2, 2)), Both((1, 3, 2), "expert")),
    (SWIGLU, Both((1, 3, 2), "expert"), Both((1, 1, 1))),
    (SWIGLU, Both((1, 1, 1)), Both((1, 2, 2), "expert")),
    (GELU, Both((2, 1, 2), outer=FLAT), Both((2, 2, 1), outer="ZeRO-1")),
    pytest.param(
        GELU, Both((2, 2, 2), outer=FULL), Both((2, 2, 2), "expert", FLAT), marks=pytest.mark.slow
    ),
]


def twice(ranks, micro_batches):
    return interleaved_1f1b(ranks, micro_batches, 2)


HYBRID = {
    "one rank": {},
    "replicated": {"dp_replicate": 4},
    "sharded, ep 4": {"dp_shard": 4, "ep": 4},
    "four stages": {"pp": 4},
    "ring, ep 2": {"cp": 4, "ep": 2},
    "tensor": {"tp": 4},
    "hybrid sharding, ep 2": {"dp_replicate": 2, "dp_shard": 2, "ep": 2},
    "stages in shards, ep 2": {"pp": 2, "dp_shard": 2, "ep": 2, "schedule": twice},
    "tensor inside shards": {"dp_shard": 2, "tp": 2, "axes": ("tp", "dp_shard", "cp", "pp", "dp_replicate")},
    "Ulysses and tensor, ep 2": {"cp": 2, "tp": 2, "ep": 2, "context": "ulysses"},
}  # fmt: skip
ALL = [Hybrid(*one) for one in HYBRID.items()]
# Cut along every axis between them: `make test` tries these, both ways.
FEW = [one for one in ALL if one.name in ("ring, ep 2", "stages in shards, ep 2", "tensor inside shards")]  # fmt: skip


@functools.cache
def right(kind: type, config: Any) -> dict[str, Any]:
    """One process's state, a step after the load."""
    if kind is Hybrid:
        return used(hybrid_layouts.alone(config, steps=STEPS + 1).state)
    if kind is Layout or kind is Both:
        return layouts.alone(config, STEPS + 1).state
    parts = 2 if config is PIPED_EXPERTS else 1
    return used(micro_batches.alone(config, parts, STEPS + 1).state)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folder and state by layout, written when first asked for."""

    @functools.cache
    def of(layout: Any, config: Any) -> tuple[str, dict[str, Any]]:
        folder = str(Path(tmp_path_factory.mktemp("saved")) / "a step")
        states = launch(write, layout.ranks, layout, config, folder, STEPS)
        for rank, state in enumerate(states):
            compare(state, states[0], 0.0, f"{layout}, rank {rank}: value")
        return folder, states[0]

    return of


def check(saved, config, sources, target):
    written = [saved(source, config) for source in sources]
    folders = [folder for folder, _ in written]
    # Of a layout and one process it is the layout's kind that says how a batch is divided.
    truth = right(type(target), config)
    for found in launch(read, target.ranks, target, config, folders, STEPS):
        for source, (_, before), (loaded, later) in zip(sources, written, found, strict=True):
            compare(loaded, before, 0.0, f"{source} to {target}: value")
            compare(later, truth, 1e-12, f"{source} to {target}: value a step later", norm=2)


NAMES = [" to ".join(map(str, getattr(one, "values", one)[1:])) for one in PAIRS]


@pytest.mark.parametrize(("config", "source", "target"), PAIRS, ids=NAMES)
def test_saved_on_one_layout_and_loaded_on_another(saved, config, source, target):
    check(saved, config, [source], target)


@pytest.mark.parametrize("target", FEW, ids=str)
def test_from_a_few_layouts_of_all_axes_to_each_of_them(saved, target):
    check(saved, MIXTURE, FEW, target)


ONE_OF_FIVE = (1, 5)


@pytest.mark.slow
@pytest.mark.stands_on(share=ONE_OF_FIVE, lately=ONE_OF_FIVE)
@pytest.mark.parametrize("target", ALL, ids=str)
def test_from_all_ten_layouts_of_all_axes_to_each_of_them(saved, target):
    assert len(ALL) == 10
    check(saved, MIXTURE, ALL, target)
