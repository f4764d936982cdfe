"""Tensor parallelism with experts is one process: gradients per parameter, norms, clipped steps, states. What is sent,
and what is refused: test_cut_mixtures.py; checkpoints: test_other_layouts.py.
"""

from __future__ import annotations

import functools
import math

import pytest
import torch

from dtcourse import launch
from dtcourse import tensor_parallel as tp
from dtcourse.parameters.averaging import average
from dtcourse.parameters.clipping import clip_grad_norm
from dtcourse.verify import compare
from tests.pairs.layouts import alone, build
from tests.pairs.tensor_experts import GELU, SWIGLU, Both, Training, together

# Each value of each parameter is tried every time, their other combinations by turns (tests/turns.py).
pytestmark = pytest.mark.each_once("tests/pairs/", "dtcourse/parameters/")

truth = functools.cache(alone)


def right_of(config):
    """One process's, with zeros for what nobody uses, which average_gradients makes."""
    right = truth(config)
    trained = {n: p for n, p in build(config).named_parameters() if p.requires_grad}
    zeros = [
        of_step | {n: torch.zeros_like(p) for n, p in trained.items() if of_step[n] is None}
        for of_step in right.gradients
    ]
    return right, zeros


def check(layout, config):
    right, gradients = right_of(config)
    for rank, found in enumerate(launch(together, layout.ranks, layout, config)):
        where = f"{layout}, rank {rank}"
        for step, (mine, theirs) in enumerate(zip(found.gradients, gradients, strict=True)):
            compare(mine, theirs, 1e-12, f"{where}, step {step}: gradient", norm=2)
        for mine, theirs in zip(found.norms, right.norms, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-12), where
        compare(found.state, right.state, 1e-12, f"{where}: value", norm=2)


@pytest.mark.parametrize("first", ["tensor", "expert"])
@pytest.mark.parametrize("shape", [(1, 2, 2), (1, 3, 2)], ids=str)
@pytest.mark.parametrize("config", [GELU, SWIGLU], ids=["gelu", "swiglu"])
def test_experts_and_tensor_parallelism_are_one_process(config, shape, first):
    check(Both(shape, first), config)


@pytest.mark.parametrize("shape", [(2, 1, 2), (1, 1, 3), (2, 2, 1)], ids=str)
def test_with_one_rank_on_an_axis_too(shape):
    check(Both(shape), GELU)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["tensor", "expert"])
@pytest.mark.parametrize("outer", ["ZeRO-1", "fully_shard", "FullyShardedDataParallel"])
def test_a_third_technique_over_both_is_one_process(outer, first):
    check(Both((2, 2, 2), first, outer), GELU)


# --- broken on purpose ------------------------------------------------------------------------------------------------


def broken(mistake):
    """A step with one axis dropped or doubled: gradients and the norm."""
    training = Training(Both((1, 2, 2)), GELU)
    axes = {
        "tensor": training.mesh.get_group("tensor"),
        "expert": training.mesh.get_group("expert"),
    }
    for block in training.model.blocks:
        region = block.mlp.experts.mine
        if mistake == "no copy":  # the rows' gradients are each rank's part
            region.forward = lambda x, counts, of=region: tp.mappings.reduce(
                of.sliced(x, counts), of.group
            )
        elif mistake == "no sum":
            region.forward = region.sliced.forward
    training.backward(0)
    if mistake == "mean over tensor too":
        average(training.model, [axes["tensor"]])
    if mistake == "experts summed":
        for name, parameter in training.model.named_parameters():
            if ".experts." in name and parameter.grad is not None:
                torch.distributed.all_reduce(parameter.grad, group=axes["expert"])
    which = mistake.removeprefix("norm forgets ")
    for parameter in training.model.parameters() if which in axes else ():
        placed = parameter.placed
        cuts = tuple(c for c in placed.cuts if c.group != axes[which])
        parameter.placed = type(placed)(placed.shape, cuts)
    if mistake == "norm counts copies":
        like = training.model.blocks[0].mlp.experts.mine.sliced.up.placed
        for parameter in training.model.parameters():
            parameter.placed = type(like)(parameter.placed.shape, like.cuts)
    return clip_grad_norm(training.model, 1e9).item()


MISTAKES = ["no copy", "no sum", "mean over tensor too", "experts summed", "norm forgets tensor",
            "norm forgets expert", "norm counts copies"]  # fmt: skip


@pytest.mark.parametrize("mistake", ["none", *MISTAKES])
def test_an_axis_dropped_or_doubled_is_seen(mistake):
    right = truth(GELU).norms[0][1]
    found = list(launch(broken, 4, mistake))
    if mistake == "none":
        assert found == pytest.approx([right] * 4, rel=1e-12)
    else:
        assert any(not math.isclose(norm, right, rel_tol=1e-3) for norm in found)
