"""Pipelines and layouts of two axes: a run that resumes is the undisturbed one, bit for bit, on as many ranks."""

from __future__ import annotations

import pytest
import torch

from dtcourse import launch
from dtcourse.fault_tolerance import BackgroundCheckpoints, Checkpoints, RandomStates, TrainingState
from dtcourse.hybrid import HybridConfig
from dtcourse.parameters.placement import local
from dtcourse.pipeline_parallel import interleaved_1f1b
from tests.hybrid.layouts import MICRO_BATCHES, TIED, batch, own_samples, start
from tests.turns import taking_turns

SAVED, STEPS = 2, 4


def twice(ranks, micro_batches):
    return interleaved_1f1b(ranks, micro_batches, 2)


LAYOUTS = {
    "four stages": {"pp": 4},
    "stages in shards": {"pp": 2, "dp_shard": 2, "schedule": twice},
    "stages, replicated": {"pp": 2, "dp_replicate": 2},
    "tensor inside shards": {"dp_shard": 2, "tp": 2},
    "hybrid sharding": {"dp_replicate": 2, "dp_shard": 2},
    "ring": {"cp": 4},
}


class Run:
    def __init__(self, layout):
        self.training = start(TIED, HybridConfig(**LAYOUTS[layout], micro_batches=MICRO_BATCHES))
        self.optimizer = torch.optim.Adam(self.training.module.parameters(), lr=0.01)
        self.state = TrainingState.of(
            self.training.module, self.optimizer, own={"random": RandomStates()}, layout=layout
        )

    def take_step(self, number):
        self.optimizer.zero_grad()
        self.training.step(*own_samples(self.training, *batch(TIED, number)))
        self.training.clip_grad_norm(0.3)
        self.optimizer.step()

    def bits(self):
        """Of what this rank has."""
        return [local(p).detach().clone() for p in self.training.module.parameters()]


def resumed(root, layout):
    run = Run(layout)
    with BackgroundCheckpoints(Checkpoints(root)) as saving:
        for number in range(1, STEPS + 1):
            run.take_step(number)
            if number == SAVED:
                saving.save(number, run.state.snapshot, run.state.about())
    again = Run(layout)
    again.take_step(7)  # it has been elsewhere
    first = again.state.load(Checkpoints(root).latest())
    for number in range(first + 1, STEPS + 1):
        again.take_step(number)
    pairs = zip(run.bits(), again.bits(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def all_resumed(root, layouts):
    return {name: resumed(root / name, name) for name in layouts}


FIRST = ("four stages", "tensor inside shards")


@pytest.mark.parametrize(
    "layouts", [FIRST, *taking_turns(*((n,) for n in LAYOUTS if n not in FIRST), about="dtcourse/fault_tolerance/")],
    ids=", ".join,
)  # fmt: skip
def test_a_resumed_run_is_the_undisturbed_one_bit_for_bit(layouts, tmp_path):
    for said in launch(all_resumed, 4, tmp_path, layouts):
        assert said == dict.fromkeys(layouts, True)
