"""A pipeline with another technique is one process: gradients per parameter, norms, clipped steps and the state."""

from __future__ import annotations

import functools
import math

import pytest

from dtcourse import launch
from dtcourse.expert_parallel import average_gradients
from dtcourse.parameters.clipping import clip_grad_norm
from dtcourse.parameters.whole import full_gradients
from dtcourse.pipeline_parallel import copies as copies_file
from dtcourse.verify import compare, gradients_of
from tests.pairs.layouts import GPT2, LLAMA, batch, build, used
from tests.pairs.micro_batches import alone
from tests.pairs.pipelines import (
    EXPERTS,
    SCHEDULES,
    SHARDED,
    SIX_HEADS,
    TWO_OWNERS,
    Piped,
    together,
)

# Each value of each parameter is tried every time, their other combinations by turns (tests/turns.py).
pytestmark = pytest.mark.each_once("tests/pairs/", "dtcourse/parameters/")

truth = functools.cache(alone)
LARGE = [(2, 3), (3, 2)]  # ranks on the axes (other, pipe)


def truth_of(layout, config):
    """Where there are experts, a micro-batch is of all ranks."""
    return truth(config, layout.shape[0]) if layout.other == "expert" else truth(config)


def check(layout, config):
    right, ranks = truth_of(layout, config), launch(together, layout.ranks, layout, config)
    for rank, found in enumerate(ranks):
        where = f"{layout}, rank {rank}"
        for step, (mine, theirs) in enumerate(zip(found.gradients, right.gradients, strict=True)):
            compare(mine, used(theirs), 1e-12, f"{where}, step {step}: gradient", norm=2)
        for mine, theirs in zip(found.norms, right.norms, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-12), where
        compare(found.state, used(right.state), 1e-12, f"{where}: value", norm=2)
    for step, theirs in enumerate(right.losses):  # the mean of those who have other samples
        mine = [found.losses[step] for found in ranks if found.losses[step] is not None]
        assert sum(mine) / len(mine) == pytest.approx(theirs, rel=1e-12), (layout, step)


BOTH = pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
TIED_OR_GROUPED = pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["tied", "grouped"])


@TIED_OR_GROUPED
@BOTH
@pytest.mark.parametrize("outer", SHARDED)
def test_full_sharding_over_a_pipeline(outer, schedule, config):
    check(Piped(outer, schedule), config)


@TIED_OR_GROUPED
@BOTH
def test_a_pipeline_over_tensor_parallelism(schedule, config):
    check(Piped("tensor", schedule), config)


@TIED_OR_GROUPED
@BOTH
def test_a_pipeline_over_sequence_parallelism(schedule, config):
    check(Piped("sequence", schedule), config)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pipeline_over_experts(schedule):
    check(Piped("expert", schedule), EXPERTS)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_data_parallelism_over_a_pipeline(schedule):
    check(Piped("data_parallel", schedule), GPT2)


@BOTH
def test_zero1_over_a_pipeline(schedule):
    check(Piped("ZeRO-1", schedule), GPT2)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("how", ["ZeRO-2", "reduce_gradients"])
def test_zero2_over_a_pipeline(how, schedule):
    check(Piped(how, schedule), TWO_OWNERS)


@pytest.mark.parametrize("shape", LARGE, ids=["2 x 3", "3 x 2"])
@pytest.mark.parametrize(
    "other", [*SHARDED, "tensor", "sequence", "expert", "data_parallel", "ZeRO-1", "ZeRO-2"]
)
def test_six_ranks(other, shape):
    if other == "sequence" and shape[0] == 3:
        pytest.skip("8 tokens are not as many for each of 3 ranks")
    config = {"expert": EXPERTS, "tensor": SIX_HEADS}.get(other, GPT2)
    check(Piped(other, "1F1B", shape), config)


# --- what ZeRO-2 keeps ------------------------------------------------------------------------------------------------


def owners_alone(layout, config):
    """Two steps without zero_grad: are the rank's gradients those that it owns, how many, and the whole sums."""
    mesh = layout.mesh()
    pipeline = layout.pipeline(config, mesh)
    optimizer = layout.optimizer(pipeline, mesh)
    pipeline.step(*layout.batch(config, mesh, 0))
    there = {p for p in optimizer.owner if p.grad is not None}
    owned = {p for p in optimizer.owned() if p.requires_grad}
    pipeline.step(*layout.batch(config, mesh, 1))
    return there <= owned, len(there), full_gradients(pipeline.module)


def test_gradients_stay_on_their_owners_and_add_up():
    plain = build(TWO_OWNERS)
    for step in range(2):
        plain.loss(*batch(TWO_OWNERS, step)).backward()
    right = used(gradients_of(plain))
    for only_there, held, found in launch(owners_alone, 4, Piped("ZeRO-2", "1F1B"), TWO_OWNERS):
        assert only_there
        assert held
        compare(found, {n: right[n] for n in found}, 1e-12, "gradient", norm=2)


# --- broken on purpose ----------------------------------------------------------------------------------------------


def forgets_the_owner(layout, config):
    """A tied gradient is added up as if it were whole on every replica of a stage."""
    copies_file.gradient_owner = lambda parameter: None
    mesh = layout.mesh()
    pipeline = layout.pipeline(config, mesh)
    pipeline.step(*layout.batch(config, mesh, 0))
    return full_gradients(pipeline.module)["token_embedding.weight"]


def test_a_tied_gradient_on_two_owners_is_not_whole():
    right = truth(TWO_OWNERS).gradients[0]["token_embedding.weight"]
    for found in launch(forgets_the_owner, 4, Piped("ZeRO-2", "1F1B"), TWO_OWNERS):
        assert (found - right).norm() > 0.01 * right.norm()


def wrong_gates(layout, config, mistake):
    """The gates' losses of all stages are left out, or gradients are not averaged over the experts' axis."""
    mesh = layout.mesh()
    pipeline = layout.pipeline(config, mesh)
    if mistake == "the losses":
        pipeline.auxiliary.makers = {stage: [] for stage in pipeline.stages}
    pipeline.step(*layout.batch(config, mesh, 0))
    if mistake != "the experts' axis":
        average_gradients(pipeline.module, mesh["other"])
    return full_gradients(pipeline.module)


@pytest.mark.parametrize("mistake", ["none", "the losses", "the experts' axis"])
def test_a_gates_loss_too_few_is_seen(mistake):
    right = truth(EXPERTS, 2).gradients[0]
    gates = [name for name in right if name.endswith("gate.linear.weight")]
    assert len(gates) == 2
    for found in launch(wrong_gates, 4, Piped("expert", "1F1B"), EXPERTS, mistake):
        for name in gates:
            off = (found[name] - right[name]).norm() / right[name].norm()
            assert (off < 1e-12) == (mistake == "none")


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
