"""A guard, and what a communication hook keeps without a state_dict: asked for, and as if the batch had never been."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

from dtcourse import launch
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.fault_tolerance.guard import Attributes, LossGuard
from tests.fault_tolerance.guarded import Run


def low_rank():
    """PyTorch's own, which keeps residuals, matrices and random numbers."""
    return power_sgd.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5
    ), power_sgd.powerSGD_hook


def residuals():
    """One of a user's own, in a dict: rounds, and keeps what that has left out."""

    def hook(state, bucket):
        flat = bucket.buffer() + state.get(bucket.index(), 0)
        rounded = flat.round(decimals=1)
        state[bucket.index()] = flat - rounded
        future = dist.all_reduce(rounded, async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / dist.get_world_size())

    return {}, hook


MADE = {"PyTorch's PowerSGD": low_rank, "a dict of residuals": residuals}


def trained(which, numbers, spoilt, told):
    state, hook = MADE[which]()
    run = Run(DistributedDataParallel)
    run.wrapped.register_comm_hook(state, hook)
    guard = LossGuard(touched=[*run.touched(), *([Attributes(state)] if told else [])])
    bad = dict.fromkeys(spoilt, "nan")
    rank = dist.get_rank()
    takes = [
        verdict.take for verdict in run.train(guard, numbers, bad if rank == 1 else None, rank)
    ]
    return takes, run.left()


@pytest.mark.parametrize("which", MADE)
def test_a_batch_left_out_leaves_nothing_in_the_hooks_state(which):
    with_it = launch(trained, 2, which, [0, 1, 2, 3, 9, 4, 5], [9], True)
    without = launch(trained, 2, which, [0, 1, 2, 3, 4, 5], [], True)
    for (takes, left), (_, right) in zip(with_it, without, strict=True):
        assert takes == [True] * 4 + [False] + [True] * 2
        assert left == right


def refused(which):
    with pytest.raises(ValueError) as caught:
        trained(which, [0], [], False)
    return str(caught.value)


@pytest.mark.parametrize("which", MADE)
def test_a_guard_asks_for_a_state_that_it_does_not_know(which):
    for said in launch(refused, 2, which):
        kind = {"a dict of residuals": "dict"}.get(which, "PowerSGDState")
        assert f"keeps a {kind} from step to step" in said
        assert "pass it, LossGuard(touched=[..., Attributes(state)])" in said


def grouped():
    """What PyTorch's hooks without anything to keep are given: nobody is asked for it."""
    run = Run(DistributedDataParallel)

    def hook(state, bucket):
        work = dist.all_reduce(bucket.buffer() / dist.get_world_size(), group=state, async_op=True)
        return work.get_future()

    run.wrapped.register_comm_hook(dist.group.WORLD, hook)
    return [v.take for v in run.train(LossGuard(touched=run.touched()), [0, 1])]


def test_a_group_is_nothing_that_changes():
    assert [*launch(grouped, 2)] == [[True, True]] * 2


def test_attributes_come_back_into_the_very_object():
    state, _ = low_rank()
    state.process_group, kept = torch.nn.Identity(), Attributes(state)  # stands for one here
    before = kept.state_dict() | {"iter": 5}
    state.iter, state.error_dict = 9, {0: torch.ones(2)}
    kept.load_state_dict(before)
    assert kept.of is state and state.iter == 5 and not state.error_dict
