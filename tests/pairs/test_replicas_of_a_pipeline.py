"""Replicas of a pipeline in what is less usual: parameters that some micro-batches leave unused, steps that add up, and
a mean over three replicas that the user takes by hand. All of it is one process.
"""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import expert_parallel as ep
from dtcourse import launch
from dtcourse.data_parallel import average_gradients
from dtcourse.parameters.averaging import average
from dtcourse.parameters.naming import entries
from dtcourse.parameters.whole import full_gradients, full_state_dict
from dtcourse.pipeline_parallel import Pipeline, one_f_one_b, split
from dtcourse.verify import compare
from tests.pairs import pipelines
from tests.pairs.layouts import BATCH, GPT2, batch, build, used
from tests.pairs.micro_batches import in_micro_batches
from tests.pairs.pipelines import EXPERTS, Piped
from tests.pairs.test_tied_copies import TIED

# --- unused -----------------------------------------------------------------------------------------------------------

MICRO_BATCHES, WIDTH = 2, 4


class Sometimes(nn.Module):
    """Uses one of its layers for micro-batches that begin with a number above 0, and another one never."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.never = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        y = self.always(x)
        # What a stage before has computed may have any sign.
        return y + self.sometimes(y) if self.on else y

    on = True


def chain():
    torch.manual_seed(0)
    return nn.Sequential(*(Sometimes() for _ in range(2))).double()


def samples(step):
    make = torch.Generator().manual_seed(step)
    return [torch.randn(8, WIDTH, generator=make, dtype=torch.double) for _ in range(2)]


# By step and replica, whether its micro-batches use the layer: all, one replica's, nobody's, the other one's.
USED = [(True, True), (False, True), (False, False), (True, False)]
ADAM = {"lr": 0.1, "weight_decay": 0.1}


def in_one_process():
    model = chain()
    optimizer = torch.optim.AdamW(model.parameters(), **ADAM)
    found = []
    for step, used_by in enumerate(USED):
        optimizer.zero_grad()
        for replica, on in enumerate(used_by):
            for layer in model:
                layer.on = on
            x, y = (t.chunk(2)[replica] for t in samples(step))
            (F.mse_loss(model(x), y) / 2).backward()
        found.append(
            {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
        )
        optimizer.step()
    return found, model.state_dict()


def in_replicas():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipe"))
    schedule, model = one_f_one_b(2, MICRO_BATCHES), chain()
    stages = split(model, [range(1), range(1, 2)], schedule, mesh.get_local_rank("pipe"))
    pipeline = Pipeline(
        stages, schedule, F.mse_loss, mesh.get_group("pipe"), data_parallel=mesh.get_group("data")
    )
    optimizer = torch.optim.AdamW(pipeline.module.parameters(), **ADAM)
    found, replica = [], mesh.get_local_rank("data")
    for step, used_by in enumerate(USED):
        optimizer.zero_grad()
        for layer in model:
            layer.on = used_by[replica]
        pipeline.step(*(t.chunk(2)[replica] for t in samples(step)))
        found.append(full_gradients(pipeline.module))
        optimizer.step()
    return found, full_state_dict(pipeline.module)


def test_what_no_replica_has_used_has_no_gradient():
    """AdamW moves a weight whose gradient is zero, by its moments and by decay, and leaves one without a gradient."""
    gradients, state = in_one_process()
    assert [g["0.sometimes.weight"] is None for g in gradients] == [False, False, True, False]
    for rank, (mine, mine_state) in enumerate(launch(in_replicas, 4)):
        for step, (found, right) in enumerate(zip(mine, gradients, strict=True)):
            assert {n for n, g in found.items() if g is None} == {
                n for n, g in right.items() if g is None
            }
            compare(found, right, 1e-12, f"rank {rank}, step {step}: gradient", norm=2)
        compare(mine_state, state, 1e-12, f"rank {rank}: value", norm=2)


# --- steps that add up ------------------------------------------------------------------------------------------------


def two_steps_at_once(other):
    layout = Piped(other, "1F1B")
    mesh = layout.mesh()
    pipeline = layout.pipeline(GPT2, mesh)
    for step in range(2):
        pipeline.step(*layout.batch(GPT2, mesh, step))
    return full_gradients(pipeline.module)


@pytest.mark.parametrize("other", ["data_parallel", "fully_shard"])
def test_two_steps_without_zero_grad_add_up(other):
    plain = build(GPT2)
    for step in range(2):
        plain.loss(*batch(GPT2, step)).backward()
    right = used({n: p.grad for n, p in plain.named_parameters()})
    for rank, found in enumerate(launch(two_steps_at_once, 4, other)):
        compare(found, {n: right[n] for n in found}, 1e-12, f"rank {rank}: gradient", norm=2)


# --- by hand, over three replicas -------------------------------------------------------------------------------------


def by_hand(how):
    """This rank's copy of the tied gradient, and all gradients."""
    experts = how == "experts"
    layout, config = (
        Piped("expert" if experts else "by hand", "1F1B", (3, 2)),
        EXPERTS if experts else GPT2,
    )
    mesh = layout.mesh()
    pipeline = layout.pipeline(config, mesh)
    pipeline.step(*layout.batch(config, mesh, 0))
    if experts:
        ep.average_gradients(pipeline.module, mesh["other"])
    elif how == "average_gradients":
        average_gradients(pipeline.module, mesh.get_group("other"))
    else:
        average(pipeline.module, [mesh.get_group("other")])
    (copy,) = [e for e in entries(pipeline.module) if {*e.names} & {*TIED}]
    return copy.parameter.grad, full_gradients(pipeline.module)


@pytest.mark.parametrize("how", ["experts", "average", "average_gradients"])
def test_copies_have_the_same_bits_after_a_mean_by_hand(how):
    config, parts = (EXPERTS, 3) if how == "experts" else (GPT2, 1)
    plain = pipelines.build(config)
    x_and_y = (in_micro_batches(t, parts, pipelines.MICRO_BATCHES) for t in batch(config, 0))
    for x, y in zip(*x_and_y, strict=True):
        (plain.loss(x, y) * len(x) / BATCH).backward()
    right = {n: p.grad for n, p in plain.named_parameters()}
    (first, _), *_ = ranks = launch(by_hand, 6, how)
    for rank, (copy, found) in enumerate(ranks):
        assert torch.equal(copy, first), rank
        known = {n: g for n, g in found.items() if g is not None and right[n] is not None}
        compare(known, {n: right[n] for n in known}, 1e-12, f"rank {rank}: gradient", norm=2)


def refused():
    layout = Piped("reduce_gradients", "1F1B", (3, 2))
    mesh = layout.mesh()
    pipeline = layout.pipeline(GPT2, mesh)
    optimizer = layout.optimizer(pipeline, mesh)
    pipeline.step(*layout.batch(GPT2, mesh, 0))
    before = {p: p.grad for p in optimizer.owner}
    with pytest.raises(ValueError) as caught:
        optimizer.reduce_gradients()
    assert all(p.grad is gradient for p, gradient in before.items()), "nothing was sent"
    return str(caught.value)


def test_tied_gradients_are_not_reduced_to_owners_among_three():
    words = (
        r"reduce_gradients: other ranks of a pipeline hold copies of parameter \d+ of group 0, a tied parameter, and a "
        r"mean over 3 ranks .* drift apart. Wrap the stages in ShardedDataParallel"
    )
    for said in launch(refused, 6):
        assert re.search(words, said), said
