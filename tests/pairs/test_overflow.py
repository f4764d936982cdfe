"""Loss scaling over two axes: a gradient that is not finite on one rank skips the step on all, with one scale for all.

Each rank in turn overflows in a step of its own; what is left is one process that has taken the other steps.
"""

from __future__ import annotations

import functools
import logging
import math

import pytest
import torch.distributed as dist
from torch import nn

from dtcourse import expert_parallel as ep
from dtcourse import launch
from dtcourse.memory import GradScaler
from dtcourse.parameters.clipping import clip_grad_norm
from dtcourse.parameters.cuts import EXPERT
from dtcourse.parameters.naming import entries
from dtcourse.parameters.placement import local
from dtcourse.parameters.whole import full_state_dict
from dtcourse.verify import compare
from tests.pairs import pipelines
from tests.pairs.layouts import GPT2, MAX_NORM, Layout, Training, batch, build, sgd, share
from tests.pairs.micro_batches import in_micro_batches
from tests.pairs.pipelines import EXPERTS, MICRO_BATCHES, Piped, loss

RANKS = 4
BAD = range(1, 1 + RANKS)  # in step 1 + r rank r overflows
SCALE = 1024.0


@functools.cache
def alone(config=GPT2, parts=1, micro_batches=1, make=build):
    """The first step and the last one. parts, micro_batches: as in_micro_batches"""
    model = make(config)
    optimizer, norms = sgd(model), []
    for step in (0, 1 + RANKS):
        optimizer.zero_grad()
        x_and_y = (in_micro_batches(t, parts, micro_batches) for t in batch(config, step))
        total = sum(model.loss(x, y) for x, y in zip(*x_and_y, strict=True))
        (total / micro_batches).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item())
        optimizer.step()
    return model.state_dict(), norms


def spoil(model, step):
    """This rank's first gradient is infinite where it is its turn; its experts', where it has some."""
    if step - 1 == dist.get_rank():
        held = [e for e in entries(model) if e.parameter.grad is not None]
        experts = [
            e for e in held if any(c.technique == EXPERT and c.differs for c in e.placed.cuts)
        ]
        grads = [local(e.parameter.grad) for e in experts or held]
        next(grad for grad in grads if grad.numel()).view(-1)[0] = math.inf


def step_with(scaler, model, optimizer, found):
    """As a user writes it."""
    scaler.unscale_(optimizer)
    norm = clip_grad_norm(model, MAX_NORM).item()
    scaler.step(optimizer)
    scaler.update()
    found.append((scaler.get_scale(), norm))


def over_two_axes(layout, config=GPT2):
    logging.disable(logging.WARNING)
    training, found = Training(layout, config, seed=0), []
    scaler = GradScaler(init_scale=SCALE, model=training.wrapped)
    for step in range(2 + RANKS):
        training.optimizer.zero_grad()
        x, y = (share(layout, training.mesh, t) for t in batch(config, step))
        if layout.inner == "expert":
            scaler.scale(training.model.loss(x, y)).backward()
            ep.average_gradients(training.model, training.mesh)
        else:
            logits = training.wrapped(x).flatten(0, 1)
            scaler.scale(nn.functional.cross_entropy(logits, y.flatten())).backward()
        spoil(training.wrapped, step)
        step_with(scaler, training.wrapped, training.optimizer, found)
    return full_state_dict(training.wrapped), found


def over_a_pipeline(layout, by, config=GPT2):
    """by: what overflows: a gradient after the mean, each rank's in turn, or a replica's loss before it."""
    logging.disable(logging.WARNING)
    mesh = layout.mesh()
    pipeline = layout.pipeline(config, mesh)
    optimizer = layout.optimizer(pipeline, mesh)
    scaler, found = GradScaler(init_scale=SCALE, model=pipeline.module), []
    turn = -1

    def spoiled(logits, target):
        mine = by == "loss" and turn in BAD and dist.get_rank() == (1, 3)[turn % 2]
        return loss(logits, target) * (math.inf if mine else 1.0)

    pipeline.loss = spoiled
    for step in range(2 + RANKS):
        optimizer.zero_grad()
        turn = step
        pipeline.step(*layout.batch(config, mesh, step), scale=scaler.scale)
        if layout.other == "expert":
            ep.average_gradients(pipeline.module, mesh["other"])
        if by == "gradient":
            spoil(pipeline.module, step)
        step_with(scaler, pipeline.module, optimizer, found)
    return full_state_dict(pipeline.module), found


def check(ranks, right=None):
    state, norms = right or alone()
    scales = [SCALE / 2**n for n in range(1 + RANKS)]
    for rank, (mine, found) in enumerate(ranks):
        assert [scale for scale, _ in found] == [*scales, scales[-1]], rank
        assert [found[0][1], found[-1][1]] == pytest.approx(norms, rel=1e-12), rank
        known = {n: v for n, v in state.items() if n in mine}
        compare(mine, known, 1e-12, f"rank {rank}: value", norm=2)


OUTER = ["fully_shard", "FullyShardedDataParallel", "ZeRO-2"]


@pytest.mark.parametrize("outer", OUTER)
def test_overflow_on_a_rank_of_two_axes_skips_the_step_on_all(outer):
    check(launch(over_two_axes, RANKS, Layout(outer, "tensor", (2, 2))))


def test_overflow_of_one_ranks_experts_skips_the_step_on_all():
    check(
        launch(over_two_axes, RANKS, Layout("nothing", "expert", (2, 2)), EXPERTS), alone(EXPERTS)
    )


def test_overflow_of_one_ranks_experts_skips_the_step_on_all_stages():
    right = alone(EXPERTS, 2, MICRO_BATCHES, make=pipelines.build)
    check(launch(over_a_pipeline, RANKS, Piped("expert", "1F1B"), "gradient", EXPERTS), right)


@pytest.mark.parametrize("other", ["tensor", "fully_shard", "ZeRO-2"])
def test_overflow_on_a_stage_skips_the_step_on_all(other):
    check(launch(over_a_pipeline, RANKS, Piped(other, "1F1B"), "gradient"))


def test_overflow_of_a_replica_of_a_pipeline_skips_the_step_on_all():
    check(launch(over_a_pipeline, RANKS, Piped("data_parallel", "1F1B"), "loss"))
