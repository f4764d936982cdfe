"""A guard, and what a communication hook keeps without a state_dict: asked for, and as if the batch had never been."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

from dtcourse import launch
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.fault_tolerance.guard import Attributes, LossGuard
from dtcourse.fault_tolerance.guard.copies import Copies, how_to_pass
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
    before = kept.state_dict()
    before["attributes"] |= {"iter": 5}
    state.iter, state.error_dict = 9, {0: torch.ones(2)}
    kept.load_state_dict(before)
    assert kept.of is state and state.iter == 5 and not state.error_dict


@dataclass(frozen=True)
class Frozen:
    left: list
    step: int = 0


@dataclass(frozen=True, slots=True)
class InSlots(Frozen):
    more: list = field(default_factory=list)


class Named(dict):
    """A dict with an attribute, and a property that hides one."""

    def __init__(self, **items):
        super().__init__(**items)
        self.left, vars(self)["seen"] = [1.0], 2

    @property
    def seen(self):
        return vars(self)["seen"]


GROUP = dist.ProcessGroup(0, 1)
STATES = {
    "a dict": lambda: {"left": [1.0], "group": GROUP, "two": (torch.ones(2), 3)},
    "a defaultdict": lambda: defaultdict(list, left=[1.0]),
    "a Counter": lambda: Counter("left"),
    "a list": lambda: [torch.ones(2), [1.0]],
    "a set": lambda: {1, 2},
    "a deque": lambda: deque([1.0, 2.0], maxlen=2),
    "a frozen dataclass": lambda: Frozen([1.0]),
    "one with slots": lambda: InSlots([1.0], more=[2.0]),
    "a dict with attributes": lambda: Named(left=[1.0]),
    "a namespace": lambda: SimpleNamespace(left=[1.0], group=GROUP),
}


def spoil(state):
    """What a hook may do to it in a step."""
    for one in [*vars(state).values()] if hasattr(state, "__dict__") else []:
        if isinstance(one, list):
            one.append(9.0)
    if isinstance(state, SimpleNamespace):
        state.new = 1
    if isinstance(state, InSlots):
        state.more.append(9.0)
    if isinstance(state, Frozen):
        state.left.append(9.0)
        object.__setattr__(state, "step", 7)
    elif isinstance(state, Counter):
        state.update("lefter")
    elif isinstance(state, dict):
        state["left"].append(9.0)
        state["new"] = 1
    elif isinstance(state, set):
        state.add(9)
    elif isinstance(state, list | deque):
        state.append(9.0)
        state[0] += 1
    if isinstance(state, Named):
        vars(state)["seen"] = 9


def said_of(state):
    """All that it holds, in words."""
    slots = [getattr(state, name) for name in getattr(state, "__slots__", ())]
    return repr((state, vars(state) if hasattr(state, "__dict__") else slots))


@pytest.mark.parametrize("which", STATES)
def test_what_an_object_keeps_is_put_back_as_often_as_asked(which):
    state = STATES[which]()
    copies = Copies([Attributes(state)])
    before, saved = said_of(state), copies.save()
    for _ in range(2):
        spoil(state)
        assert said_of(state) != before
        copies.load(saved)
        assert said_of(state) == before
    assert copies.has(state)


REFUSED = {
    "a tensor": torch.ones(2),
    "a parameter": torch.nn.Parameter(torch.ones(2)),
    "an array": np.ones(2),
    "a tuple": ([1.0], {}),
    "random numbers": random.Random(1),
    "a generator": torch.Generator(),
    "bytes": bytearray(2),
    "a lock": threading.Lock(),
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_cannot_be_put_back_is_refused_with_what_can(which):
    with pytest.raises(ValueError, match="cannot be put back into the very object: let the hook"):
        Attributes(REFUSED[which])
    assert "so let the hook keep it in a dict" in how_to_pass(REFUSED[which])


def test_what_has_a_state_dict_needs_no_attributes():
    with pytest.raises(ValueError, match="a Linear has a state_dict of its own: pass it without"):
        Attributes(torch.nn.Linear(2, 2))
