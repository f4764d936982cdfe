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

from dtcourse import launch
from dtcourse.memory import GradScaler
from dtcourse.parameters.clipping import clip_grad_norm
from dtcourse.parameters.naming import entries
from dtcourse.parameters.placement import local
from dtcourse.parameters.whole import full_state_dict
from dtcourse.verify import compare
from tests.pairs.layouts import GPT2, MAX_NORM, Layout, Training, batch, build, sgd, share
from tests.pairs.pipelines import Piped, loss

RANKS = 4
BAD = range(1, 1 + RANKS)  # in step 1 + r rank r overflows
SCALE = 1024.0


@functools.cache
def alone():
    """The first step and the last one."""
    model = build(GPT2)
    optimizer, norms = sgd(model), []
    for step in (0, 1 + RANKS):
        optimizer.zero_grad()
        model.loss(*batch(GPT2, step)).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item())
        optimizer.step()
    return model.state_dict(), norms


def spoil(model, step):
    """This rank's first gradient is infinite where it is its turn."""
    if step - 1 == dist.get_rank():
        held = [e.parameter.grad for e in entries(model) if e.parameter.grad is not None]
        next(local(g) for g in held if local(g).numel()).view(-1)[0] = math.inf


def step_with(scaler, model, optimizer, found):
    """As a user writes it."""
    scaler.unscale_(optimizer)
    norm = clip_grad_norm(model, MAX_NORM).item()
    scaler.step(optimizer)
    scaler.update()
    found.append((scaler.get_scale(), norm))


def over_two_axes(layout):
    logging.disable(logging.WARNING)
    training, found = Training(layout, GPT2, seed=0), []
    scaler = GradScaler(init_scale=SCALE, model=training.wrapped)
    for step in range(2 + RANKS):
        training.optimizer.zero_grad()
        x, y = (share(layout, training.mesh, t) for t in batch(GPT2, step))
        logits = training.wrapped(x).flatten(0, 1)
        scaler.scale(nn.functional.cross_entropy(logits, y.flatten())).backward()
        spoil(training.wrapped, step)
        step_with(scaler, training.wrapped, training.optimizer, found)
    return full_state_dict(training.wrapped), found


def over_a_pipeline(layout, by):
    """by: what overflows: a gradient after the mean, each rank's in turn, or a replica's loss before it."""
    logging.disable(logging.WARNING)
    mesh = layout.mesh()
    pipeline = layout.pipeline(GPT2, mesh)
    optimizer = layout.optimizer(pipeline, mesh)
    scaler, found = GradScaler(init_scale=SCALE, model=pipeline.module), []
    turn = -1

    def scaled(logits, target):
        mine = by == "loss" and turn in BAD and dist.get_rank() == (1, 3)[turn % 2]
        return scaler.scale(loss(logits, target) * (math.inf if mine else 1.0))

    pipeline.loss = scaled
    for step in range(2 + RANKS):
        optimizer.zero_grad()
        turn = step
        pipeline.step(*layout.batch(GPT2, mesh, step))
        if by == "gradient":
            spoil(pipeline.module, step)
        step_with(scaler, pipeline.module, optimizer, found)
    return full_state_dict(pipeline.module), found


def check(ranks, skipped=RANKS):
    state, norms = alone()
    scales = [SCALE] + [SCALE / 2**n for n in range(1, skipped + 1)]
    for rank, (mine, found) in enumerate(ranks):
        assert [scale for scale, _ in found] == [*scales, scales[-1]], rank
        assert [found[0][1], found[-1][1]] == pytest.approx(norms, rel=1e-12), rank
        known = {n: v for n, v in state.items() if n in mine}
        compare(mine, known, 1e-12, f"rank {rank}: value", norm=2)


OUTER = ["fully_shard", "FullyShardedDataParallel", "ZeRO-2"]


@pytest.mark.parametrize("outer", OUTER)
def test_overflow_on_a_rank_of_two_axes_skips_the_step_on_all(outer):
    check(launch(over_two_axes, RANKS, Layout(outer, "tensor", (2, 2))))


@pytest.mark.parametrize("other", ["tensor", "fully_shard", "ZeRO-2"])
def test_overflow_on_a_stage_skips_the_step_on_all(other):
    check(launch(over_a_pipeline, RANKS, Piped(other, "1F1B"), "gradient"))


def test_overflow_of_a_replica_of_a_pipeline_skips_the_step_on_all():
    check(launch(over_a_pipeline, RANKS, Piped("data_parallel", "1F1B"), "loss"))
