"""What norms and whole states of two techniques send: each cut is undone once, and a norm is one message per axis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.parameters.clipping import clip_grad_norm
from dtcourse.parameters.cuts import Run, Sliced
from dtcourse.parameters.naming import entries
from dtcourse.parameters.whole import full_gradients, full_state_dict
from dtcourse.sharding.unit import units_in
from tests.pairs.layouts import (
    BATCH,
    EXPERTS,
    GPT2,
    LENGTH,
    LLAMA,
    Layout,
    Training,
    backward,
    build,
)
from tests.pairs.pipelines import MICRO_BATCHES, Piped

OUTER = ("fully_shard", "FullyShardedDataParallel")
BYTES = 8  # of a double


def one_step(layout, config):
    """Elements that all-gathers take from this rank: slices of the inner cut, rows of the outer, flats; parameters."""
    mesh = layout.mesh()
    model = layout.apply(build(config), mesh)
    backward(model, layout, mesh, 0, config)
    with traffic.phase("norm"):
        clip_grad_norm(model, 1e9)
    with traffic.phase("state"):
        full_state_dict(model)
    with traffic.phase("gradients"):
        full_gradients(model)
    slices = rows = 0
    for entry in entries(model):
        *inner, outer = entry.placed.cuts
        if not isinstance(outer, Run):  # the longest rank's rows, in the shape that they have here
            rows += outer.length * entry.parameter[:1].to_local().shape[1:].numel()
        whole = entry.shape
        for cut in inner:
            if isinstance(cut, Sliced) and cut.differs:
                slices += whole.numel() // whole[cut.dim] * cut.length
    flats = sum(group.shard_numel for unit in units_in(model) for group in unit.param_groups)
    return slices, rows, flats, len(entries(model))


def owners_step(layout, config):
    """Elements of trained parameters' pieces on this rank, and of the slices' whole; parameters that are trained."""
    training = Training(layout, config, seed=0)
    training.backward(0)
    with traffic.phase("norm"):
        clip_grad_norm(training.model, 1e9)
    with traffic.phase("gradients"):
        full_gradients(training.model)
    held = [e for e in entries(training.model) if e.parameter.grad is not None]
    pieces = sum(e.parameter.numel() for e in held)
    cut = sum(e.parameter.numel() for e in held if e.placed.over)
    return pieces, cut, len([p for p in training.model.parameters() if p.requires_grad])


def test_gradients_on_their_owners_are_broadcast_once():
    run = launch(
        owners_step, 4, Layout("ZeRO-2", "tensor", (2, 2)), LLAMA, backend="ring", record=True
    )
    pieces, cut = (sum(column) for column in list(zip(*run, strict=True))[:2])
    # An owner sends to one other; then on each of the two ranks of each inner group the slices are gathered.
    present = 2 * 2 * run[0][2] * 4
    sent = run.traffic.bytes_sent(phase="gradients")
    assert sent == (pieces + 2 * cut) * BYTES + present
    # Sets of axes: inner and data, data alone, and those of frozen parameters: inner, and none.
    assert run.traffic.bytes_sent(phase="norm") == 2 * 2 * (2 + 2) * BYTES


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize(("inner", "config"), [("tensor", LLAMA), ("expert", EXPERTS)])
def test_each_cut_is_undone_once_and_a_norm_is_a_message_per_axis(outer, inner, config):
    run = launch(one_step, 4, Layout(outer, inner, (2, 2)), config, backend="ring", record=True)
    slices, rows, flats, parameters = run[0]
    # Ring, 2 groups of 2 ranks on each axis: an all-reduce of n sends 2 n per group, an all-gather of n each 2 n.
    norm = (
        2 * 2 * (2 + 1) * BYTES
    )  # on the data axis two numbers, one of which then goes over the other axis
    assert run.traffic.bytes_sent(phase="norm") == norm
    assert run.traffic.messages_sent(phase="norm") <= 2 * 4 * 2
    kept = flats if outer == "FullyShardedDataParallel" else rows
    gathers = 4 * (kept + slices) * BYTES
    present = 2 * 2 * parameters * 4 if outer == "FullyShardedDataParallel" else 0
    assert run.traffic.bytes_sent(phase="state") == gathers + present
    assert run.traffic.bytes_sent(phase="gradients") <= gathers + present


def step_of(layout, config):
    """The second step of a pipeline: its first one sends headers, too. The rank's trained elements and parameters."""
    mesh = layout.mesh()
    pipeline = layout.pipeline(config, mesh)
    optimizer = layout.optimizer(pipeline, mesh)
    for phase in ("first", "second"):
        optimizer.zero_grad()
        with traffic.phase(phase):
            pipeline.step(*layout.batch(config, mesh, 0))
    trained = [p.numel() for p in pipeline.module.parameters() if p.requires_grad]
    return sum(trained), len(trained)


def second_step(layout, config):
    run = launch(step_of, layout.ranks, layout, config, backend="ring", record=True)
    return run.traffic.bytes_sent(phase="second"), [
        sum(column) for column in zip(*run, strict=True)
    ]


def test_gates_losses_are_one_number_per_border_and_micro_batch():
    dense = replace(EXPERTS, experts=0, tied=False)
    activations = 2 * 2 * BATCH * LENGTH * EXPERTS.d_model * BYTES  # two borders, forward and back
    alone = Piped("none", "1F1B", (1, 3))
    assert second_step(alone, dense)[0] == activations
    with_gates = second_step(alone, replace(EXPERTS, tied=False))[0]
    assert with_gates == activations + 2 * 2 * MICRO_BATCHES * BYTES


def test_zero2_sends_gradients_to_owners_after_each_micro_batch():
    config = replace(GPT2, tied=False)
    activations = 2 * BATCH * LENGTH * config.d_model * BYTES
    sent, (elements, parameters) = second_step(Piped("ZeRO-2", "1F1B"), config)
    # Of two replicas each sends what the other one owns: one of them each element. Besides, an int32 of each parameter
    # says in each backward whether it was used.
    reduced = MICRO_BATCHES * elements // 2 * BYTES
    assert sent == activations + reduced + MICRO_BATCHES * parameters * 4
