"""Saved on any layout, loaded on any other: the state bit for bit, and training goes on as in one process."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dtcourse import checkpoint, launch
from dtcourse.hybrid import HybridConfig
from dtcourse.parameters.whole import full_state_dict
from dtcourse.pipeline_parallel import interleaved_1f1b
from dtcourse.verify import compare
from tests.hybrid import layouts
from tests.hybrid.layouts import MICRO_BATCHES, alone, batch, own_samples, start, used
from tests.pairs.layouts import sgd

# Without the gates' loss, which is about the samples that are together in a micro-batch: one truth for all layouts.
MIXTURE = replace(layouts.MIXTURE, balancing=0.0)
MAX_NORM = 0.3
STEPS = 2


def twice(ranks, micro_batches):
    return interleaved_1f1b(ranks, micro_batches, 2)


LAYOUTS = {
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
# Cut along every axis between them: `make test` tries these, both ways.
FEW = ("stages in shards, ep 2", "tensor inside shards", "ring, ep 2")


def config_of(layout: str) -> HybridConfig:
    return HybridConfig(**LAYOUTS[layout], micro_batches=MICRO_BATCHES)


def step(training, optimizer, number):
    optimizer.zero_grad()
    training.step(*own_samples(training, *batch(MIXTURE, number)))
    training.clip_grad_norm(MAX_NORM)
    optimizer.step()


def write(layout, folder):
    training = start(MIXTURE, config_of(layout))
    optimizer = sgd(training.module)
    for number in range(STEPS):
        step(training, optimizer, number)
    checkpoint.save(folder, training.module, optimizer)
    return full_state_dict(training.module)


def read(layout, folders):
    """Each of them after the others, so that what was there before is another step's: (loaded, a step later)."""
    training = start(MIXTURE, config_of(layout), seed=7)
    optimizer = sgd(training.module)
    found = []
    for folder in folders:
        checkpoint.load(folder, training.module, optimizer)
        loaded = {name: value.clone() for name, value in full_state_dict(training.module).items()}
        step(training, optimizer, STEPS)
        found.append((loaded, full_state_dict(training.module)))
    return found


@functools.cache
def truth():
    return used(alone(MIXTURE, steps=STEPS + 1).state)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folder and state by layout, written when first asked for."""
    root = tmp_path_factory.mktemp("saved")

    @functools.cache
    def of(layout: str) -> tuple[str, dict[str, torch.Tensor]]:
        folder = str(Path(root) / layout)
        states = launch(write, config_of(layout).ranks, layout, folder)
        for rank, state in enumerate(states):
            compare(state, states[0], 0.0, f"{layout}, rank {rank}: value")
        return folder, states[0]

    return of


def check(saved, sources, target):
    states = [saved(source) for source in sources]
    for found in launch(read, config_of(target).ranks, target, [folder for folder, _ in states]):
        for source, (_, right), (loaded, later) in zip(sources, states, found, strict=True):
            compare(loaded, right, 0.0, f"{source} to {target}: value")
            compare(later, truth(), 1e-12, f"{source} to {target}: value a step later", norm=2)


@pytest.mark.parametrize("target", FEW)
def test_from_a_few_layouts_to_each_of_them(saved, target):
    check(saved, FEW, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", LAYOUTS)
def test_from_all_ten_layouts_to_each_of_them(saved, target):
    assert len(LAYOUTS) == 10
    check(saved, [*LAYOUTS], target)
