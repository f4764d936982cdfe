"""A pipeline with another technique is one process: gradients per parameter, norms, clipped steps and the state."""

from __future__ import annotations

import functools
import math

import pytest

from dtcourse import launch
from dtcourse.parameters.clipping import clip_grad_norm
from dtcourse.verify import compare
from tests.pairs.layouts import GPT2, LLAMA, alone
from tests.pairs.pipelines import SCHEDULES, Piped, read, read_alone, together, write, write_alone
from tests.pairs.table import SHARDED

truth = functools.cache(alone)


def used(by_name):
    """Without the layer that nobody uses: it is in no layer of the model."""
    return {name: value for name, value in by_name.items() if not name.startswith("unused.")}


def check(layout, config):
    right = truth(config)
    for rank, found in enumerate(launch(together, 4, layout, config)):
        where = f"{layout}, rank {rank}"
        for step, (mine, theirs) in enumerate(zip(found.gradients, right.gradients, strict=True)):
            compare(mine, used(theirs), 1e-12, f"{where}, step {step}: gradient", norm=2)
        for mine, theirs in zip(found.norms, right.norms, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-12), where
        compare(found.state, used(right.state), 1e-12, f"{where}: value", norm=2)


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["tied", "grouped"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("outer", SHARDED)
def test_full_sharding_over_a_pipeline(outer, schedule, config):
    check(Piped(outer, schedule), config)


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["tied", "grouped"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pipeline_over_tensor_parallelism(schedule, config):
    check(Piped("tensor", schedule), config)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_data_parallelism_over_a_pipeline(schedule):
    check(Piped("data_parallel", schedule), GPT2)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_zero1_over_a_pipeline(schedule):
    check(Piped("ZeRO-1", schedule), GPT2)


# --- saved on one layout and loaded on another ------------------------------------------------------------------------

STEPS = 2


def saved_by(source, config, folder):
    if source is None:
        return launch(write_alone, 1, config, folder, STEPS)[0]
    return launch(write, 4, source, config, folder, STEPS)[0]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (Piped("fully_shard", "1F1B"), None),
        (None, Piped("FullyShardedDataParallel", "1F1B")),
        (Piped("FullyShardedDataParallel", "GPipe"), Piped("tensor", "1F1B")),
        (Piped("tensor", "1F1B"), Piped("fully_shard", "1F1B")),
    ],
    ids=str,
)
def test_saved_on_one_layout_and_loaded_on_another(source, target, tmp_path):
    folder = str(tmp_path / "saved")
    saved = saved_by(source, GPT2, folder)
    right = used(alone(GPT2, STEPS + 1).state)
    if target is None:
        found = launch(read_alone, 1, GPT2, folder, STEPS)
    else:
        found = launch(read, 4, target, GPT2, folder, STEPS)
    for loaded, after in found:
        compare(loaded, saved, 0.0, "value")
        compare(after, right, 1e-12, "value after another step", norm=2)


# --- broken on purpose ----------------------------------------------------------------------------------------------


def wrong_norm(layout, config, mistake):
    """A norm that forgets the pipeline, or counts a tied weight on both stages."""
    mesh = layout.mesh()
    pipeline = layout.pipeline(config, mesh)
    pipeline.step(*layout.batch(config, mesh, 0))
    if mistake == "forgets the pipeline":
        pipeline.module.owners = None
    elif mistake == "counts copies":
        object.__setattr__(pipeline.module.owners, "later", tuple)
    return clip_grad_norm(pipeline.module, 1e9).item()


@pytest.mark.parametrize("mistake", ["none", "forgets the pipeline", "counts copies"])
@pytest.mark.parametrize("other", ["tensor", *SHARDED])
def test_an_axis_too_few_or_a_copy_too_many_is_seen(other, mistake):
    right = truth(GPT2).norms[0][1]
    for found in launch(wrong_norm, 4, Piped(other, "1F1B"), GPT2, mistake):
        assert math.isclose(found, right, rel_tol=1e-3) == (mistake == "none")
