"""Losses that stages make themselves: gradients and the reported loss are those of one process, micro-batch by
micro-batch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse.launch import launch
from dtcourse.memory import GradScaler
from dtcourse.models import Experts, MoE, TopKGate, Transformer, TransformerConfig
from dtcourse.parameters.whole import full_gradients, full_state_dict
from dtcourse.pipeline_parallel import PipeDream, Pipeline, layers_of, one_f_one_b, split
from dtcourse.pipeline_parallel.auxiliary import AuxiliaryLosses, first_stage
from dtcourse.pipeline_parallel.schedules import pipedream
from dtcourse.verify import compare, gradients_of
from tests.pipeline_parallel.samples import MAKE

# Each value of each parameter is tried every time, their other combinations by turns (tests/turns.py).
pytestmark = pytest.mark.each_once("dtcourse/pipeline_parallel/")

CONFIG = TransformerConfig(
    vocab=11, d_model=8, n_layers=2, n_heads=2, max_length=6, d_ff=6, experts=4
)
MICRO_BATCHES = 4


def model(tied=True, frozen=(), seed=0):
    """Two mixtures whose losses count about as much as the main one."""
    built = Transformer(replace(CONFIG, tied=tied), seed=seed).double()
    for block in built.blocks:
        block.mlp.balancing, block.mlp.z = 0.7, 0.2
    for name in frozen:
        built.get_submodule(name).requires_grad_(False)
    return built


def tokens(samples=10, seed=0):
    """10 in 4 micro-batches: of 3, 3, 2 and 2."""
    return torch.randint(11, (samples, 6), generator=torch.Generator().manual_seed(seed))


def cross_entropy(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def alone(plain, x, y, micro_batches=MICRO_BATCHES):
    """The same micro-batches in one process, each counting its samples: the loss; gradients are left behind."""
    total = 0.0
    for a, b in zip(x.tensor_split(micro_batches), y.tensor_split(micro_batches), strict=True):
        loss = plain.loss(a, b) * len(a) / len(x)
        if loss.requires_grad:
            loss.backward()
        total += loss.item()
    return total


def pipelined(schedule, built, **keywords):
    layers = layers_of(built)
    each = len(layers) // schedule.num_stages
    ranges = [range(i, i + each) for i in range(0, len(layers), each)]
    stages = split(layers, ranges, schedule, dist.get_rank())
    return Pipeline(stages, schedule, cross_entropy, **keywords)


def step(schedule, make, recompute, other=None):
    """A step under a loss scaler, and one without."""
    pipeline = pipelined(schedule, make(), recompute=recompute)
    if other is not None:
        other(pipeline)
    x, y = tokens(), tokens(seed=1)
    scaler = GradScaler(init_scale=1024.0, model=pipeline.module)
    scaled_loss = pipeline.step(x, y, scale=scaler.scale)
    scaler.unscale_(torch.optim.SGD(pipeline.module.parameters()))
    scaled = full_gradients(pipeline.module)
    pipeline.module.zero_grad()
    loss = pipeline.step(x, y)
    kept = [one.auxiliary_loss for s in pipeline.auxiliary.makers.values() for one in s]
    assert not any(one.requires_grad for one in kept), "no graph is alive"
    return full_gradients(pipeline.module), loss, pipeline.evaluate(x, y), scaled, scaled_loss


def check(schedule, make, recompute=False):
    plain = make()
    loss = alone(plain, tokens(), tokens(seed=1))
    right = gradients_of(plain)
    ranks = launch(step, schedule.num_ranks, schedule, make, recompute)
    last = schedule.rank_of[schedule.num_stages - 1]
    for rank, (found, mine, evaluated, scaled, scaled_loss) in enumerate(ranks):
        compare(found, {n: right[n] for n in found}, 1e-12, "gradient")
        compare(scaled, {n: right[n] for n in scaled}, 1e-12, "gradient, scaled and divided,")
        for reported in (mine, evaluated, scaled_loss):
            assert reported == (pytest.approx(loss, rel=1e-12) if rank == last else None)


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("name", MAKE)
def test_gradients_and_loss_are_one_processes(name, recompute):
    check(MAKE[name](2, MICRO_BATCHES), model, recompute)


def test_over_three_and_four_ranks():
    untied = partial(model, tied=False)
    check(one_f_one_b(4, MICRO_BATCHES), untied)
    # No stage before the first mixture trains, so nothing but the sum needs a gradient there.
    frozen = ["token_embedding", "position_embedding", "blocks.0.norm_1", "blocks.0.attention"]
    check(one_f_one_b(4, MICRO_BATCHES), partial(model, tied=False, frozen=frozen))


def forget(pipeline):
    """The losses of one stage are left out."""
    pipeline.auxiliary.makers[next(iter(pipeline.stages))] = []


def double(pipeline):
    """A gate's loss is taken twice."""
    makers = pipeline.auxiliary.makers
    makers[next(iter(makers))] = [*next(iter(makers.values()))] * 2
    plain = AuxiliaryLosses.go_with

    def twice(stage, earlier, made):
        losses = {one: one.auxiliary_loss for one in makers.get(stage, ())}
        total = plain(pipeline.auxiliary, stage, earlier, made)
        return tuple(one + sum(losses.values()) for one in total)

    pipeline.auxiliary.go_with = twice


def scaled_in_the_loss(built):
    """How not to: the gates' losses come in beside it."""
    pipeline = pipelined(one_f_one_b(2, MICRO_BATCHES), built)
    scaler = GradScaler(init_scale=1024.0, model=pipeline.module)
    pipeline.loss = lambda logits, targets: scaler.scale(cross_entropy(logits, targets))
    pipeline.step(tokens(), tokens(seed=1))
    refusal = ""
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError) as caught:
            scaler.unscale_(torch.optim.SGD(pipeline.module.parameters()))
        refusal = str(caught.value)
    gradients = full_gradients(pipeline.module)
    return {n: g / 1024 for n, g in gradients.items() if g is not None}, refusal


def test_a_loss_that_is_scaled_without_the_gates_is_refused():
    plain = model()
    alone(plain, tokens(), tokens(seed=1))
    gate = "blocks.0.mlp.gate.linear.weight"
    right = plain.get_parameter(gate).grad
    ((found, refusal), _) = launch(scaled_in_the_loss, 2, model())
    assert (found[gate] - right).norm() > 0.1 * right.norm()
    assert "pipeline.step(x, target, scale=scaler.scale)" in refusal


@pytest.mark.parametrize("mistake", [forget, double])
def test_a_loss_too_few_or_too_many_is_seen(mistake):
    schedule, plain = one_f_one_b(2, MICRO_BATCHES), model()
    loss = alone(plain, tokens(), tokens(seed=1))
    gate = "blocks.0.mlp.gate.linear.weight"
    right = plain.get_parameter(gate).grad
    ranks = launch(step, 2, schedule, model, False, mistake)
    assert (ranks[0][0][gate] - right).norm() > 0.1 * right.norm()
    assert abs(ranks[1][1] - loss) > 0.01


# --- where losses are made ------------------------------------------------------------------------------------------


def test_the_first_stage_with_a_loss_is_found():
    layers = layers_of(model())
    assert first_stage(layers, [range(1), range(1, 2), range(2, 4)]) == 1
    assert first_stage(layers, [range(3), range(3, 4)]) == 0
    assert first_stage([nn.Linear(2, 2), nn.ReLU()], [range(1), range(1, 2)]) is None


def test_a_forward_that_makes_no_loss_counts_zero():
    """So the next rank gets what it waits for."""
    mixture = MoE(TopKGate(4, 2, 1), Experts(2, 4, 3))
    (stage,) = split([mixture, nn.Linear(4, 4)], [range(1), range(1, 2)], one_f_one_b(2, 2), 0)
    losses = AuxiliaryLosses({0: stage})
    x = torch.ones(3, 4)
    for run, value in ((lambda: stage(x), None), (lambda: x, 0.0)):
        assert losses.come_with(0, (x,)) == ((x,), ())
        (total,) = losses.go_with(0, (), (run(),))
        assert total.requires_grad == (value is None)
        assert total.item() == (mixture.auxiliary_loss.item() if value is None else value)


def test_stages_of_ones_own_with_a_loss_inside_are_refused():
    def refused():
        mixture = MoE(TopKGate(4, 2, 1), Experts(2, 4, 3))
        stages = [nn.Sequential(nn.Linear(4, 4), mixture), nn.Linear(4, 4)]
        with pytest.raises(ValueError, match=r"Stage 0 makes a loss .*auxiliary_loss of a MoE"):
            Pipeline(stages, MAKE["interleaved"](1, 2), cross_entropy)

    launch(refused, 1)


# --- without a flush ------------------------------------------------------------------------------------------------


def without_flush():
    """PipeDream with one micro-batch at a time under way is plain SGD."""
    schedule = pipedream(2, 1)
    layers = layers_of(model(tied=False))
    stages = split(layers, [range(2), range(2, 4)], schedule, dist.get_rank())
    engine = PipeDream(stages, schedule, cross_entropy, partial(torch.optim.SGD, lr=0.1))
    losses = [engine.run(x, x.flip(1)) for x in tokens(9).split(3)]
    return full_state_dict(engine.module), losses


def test_pipedream_trains_gates_by_their_own_loss():
    plain, losses = model(tied=False), []
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for x in tokens(9).split(3):
        optimizer.zero_grad()
        losses.append([alone(plain, x, x.flip(1), 1)])
        optimizer.step()
    ranks = launch(without_flush, 2)
    for state, _ in ranks:
        compare(state, plain.state_dict(), 1e-12, "value")
    assert [one for (one,) in ranks[1][1]] == pytest.approx([one for (one,) in losses], rel=1e-12)
