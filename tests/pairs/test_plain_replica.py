"""Whoever takes a rank's model for everybody's, or averages its gradients, refuses one that is in parts (slices, a
pipeline's module) or that a wrapper averages.
"""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import launch
from dtcourse.compression import CompressionState, TopK, compression_hook
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.fault_tolerance import Replicated, VirtualRanks
from dtcourse.memory import train_step_with_halving
from dtcourse.pipeline_parallel import PipeDream, Pipeline, balance, one_f_one_b, split
from dtcourse.pipeline_parallel.schedules import pipedream
from dtcourse.sharding import ShardedDataParallel, ZeroRedundancyOptimizer

RANKS, WIDTH = 2, 4


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).double()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def zero2(model):
    return ShardedDataParallel(
        model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    )


def pipelines_module(model):
    schedule = one_f_one_b(RANKS, 2)
    stages = split(model, balance([1.0] * 3, RANKS), schedule, dist.get_rank())
    return Pipeline(stages, schedule, F.mse_loss).module


def with_hook(wrapper, model):
    wrapped = wrapper(model)
    if wrapper is TorchDDP:
        wrapped.register_comm_hook(None, allreduce_hook)
    else:
        wrapped.register_comm_hook(CompressionState(TopK(0.3)), compression_hook)
    return wrapped


def virtual_ranks(model):
    return VirtualRanks(model, 3)


def wrapped_afterwards(wrapper, model):
    """The wrapper comes between, or after, VirtualRanks."""
    virtual = virtual_ranks(model)
    wrapped = wrapper(virtual.module)
    virtual.backward(lambda _: wrapped(torch.ones(2, WIDTH).double()).sum())


def around_virtual_ranks(model):
    TorchDDP(virtual_ranks(model))(torch.ones(2, WIDTH).double())


def elastic(model):
    Replicated(model, sgd(model))


def halving(model):
    x = torch.ones(4, WIDTH).double()
    train_step_with_halving(model, F.mse_loss, sgd(model), x, x, group=dist.group.WORLD)


def halving_beside(model):
    """The wrapper lives, and its module is passed."""
    wrapper = DistributedDataParallel(model)
    halving(wrapper.module)


def halving_inside(model):
    halving(nn.Sequential(DistributedDataParallel(model[0]), *model[1:]))


def torchs_round_zero2(model):
    TorchDDP(zero2(model))(torch.ones(2, WIDTH).double())


def a_pipeline_of(stage):
    Pipeline([stage], one_f_one_b(RANKS, 2), F.mse_loss)


def a_pipedream_of(stage):
    PipeDream([stage], pipedream(RANKS, 2), F.mse_loss, partial(torch.optim.SGD, lr=0.1))


AVERAGES = r"averages gradients itself, and a data-parallel wrapper averages that of (module.)?0.weight already\. "
TORCHS = r"averages gradients itself, and PyTorch's DistributedDataParallel is round it\. "
STAGES = r"and this is a pipeline's, of which each rank has stages of its own\. "
HOOK = "the communication hook of this wrapper would not be called"

# What is done, to what, and the sentence.
REFUSED = {
    "VirtualRanks over DistributedDataParallel": (virtual_ranks, DistributedDataParallel, "^VirtualRanks " + AVERAGES),
    "VirtualRanks over ZeRO-2": (virtual_ranks, zero2, "^VirtualRanks " + AVERAGES),
    "VirtualRanks over PyTorch's DDP": (virtual_ranks, TorchDDP, "^VirtualRanks " + TORCHS),
    "VirtualRanks over pipeline": (virtual_ranks, pipelines_module, "^VirtualRanks .*" + STAGES),
    "VirtualRanks over compression": (virtual_ranks, partial(with_hook, DistributedDataParallel), AVERAGES),
    "VirtualRanks in DDP": (partial(wrapped_afterwards, DistributedDataParallel), None, AVERAGES),
    "VirtualRanks in ZeRO-2": (partial(wrapped_afterwards, zero2), None, AVERAGES),
    "VirtualRanks in PyTorch's DDP": (around_virtual_ranks, None, "is round VirtualRanks, which averages"),
    "elastic over pipeline": (elastic, pipelines_module, "^Replicated .*" + STAGES + "One rank's state"),
    "halving over pipeline": (halving, pipelines_module, STAGES + "Its forward waits"),
    "halving over compression": (halving, partial(with_hook, DistributedDataParallel), HOOK),
    "halving over a hook of PyTorch's": (halving, partial(with_hook, TorchDDP), HOOK),
    "halving beside DDP": (halving_beside, None, AVERAGES + "Pass the wrapper itself"),
    "halving with DDP inside": (halving_inside, None, r"averages that of 0.module.weight already"),
    "PyTorch's DDP round ZeRO-2": (torchs_round_zero2, None, "is round ShardedDataParallel, which averages"),
    "DDP over a pipeline's module": (DistributedDataParallel, pipelines_module, STAGES + "Its own Pipeline"),
    "ZeRO-2 over a pipeline's module": (zero2, pipelines_module, STAGES + "Wrap its stages"),
    "a pipeline of a pipeline": (a_pipeline_of, pipelines_module, "^A stage .*" + STAGES),
    "PipeDream over a pipeline": (a_pipedream_of, pipelines_module, "^A stage .*" + STAGES),
}  # fmt: skip


def refusals():
    said = {}
    for key, (act, made, _) in REFUSED.items():
        model = mlp() if made is None else made(mlp())
        with pytest.raises(ValueError) as caught:
            act(model)
        said[key] = str(caught.value)
    return said


def test_parts_and_averages_are_refused_by_whoever_replicates():
    for said in launch(refusals, RANKS):
        for key, (*_, sentence) in REFUSED.items():
            assert re.search(sentence, said[key], re.DOTALL), (key, said[key])


def let_go():
    """A wrapper that nobody has any more averages nothing."""
    model = mlp()
    wrapper = DistributedDataParallel(model)
    del wrapper
    virtual_ranks(model)
    halving(model)
    return True


def test_a_wrapper_that_is_gone_is_in_nobodys_way():
    assert all(launch(let_go, RANKS))
