"""What goes around a run, over what cuts a model: the guard, a checkpoint, copies in memory, elastic, virtual ranks,
halving. What works ends with one process's weights; what cannot work is refused with a sentence.
"""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.fault_tolerance import (
    Checkpoints,
    PeerCopies,
    RankState,
    Replicated,
    TrainingState,
    VirtualRanks,
)
from dtcourse.fault_tolerance.guard import LossGuard
from dtcourse.memory.halving import train_step_with_halving
from dtcourse.parameters.clipping import clip_grad_norm
from dtcourse.parameters.placement import local
from dtcourse.parameters.whole import full_state_dict
from dtcourse.sharding import ShardedDataParallel, ZeroRedundancyOptimizer
from dtcourse.verify import compare
from tests.pairs.layouts import EXPERTS, GPT2, MAX_NORM, Layout, Training, alone

RANKS, BAD, LAST = 2, 7, 2
SHARDED = ("fully_shard", "FullyShardedDataParallel", "ZeRO-1", "ZeRO-2")
CUT = ("tensor", "sequence", "expert")


def layout_of(name):
    """A technique alone, over both ranks."""
    if name in CUT:
        return Layout("nothing", name, (1, RANKS))
    return Layout(name, "nothing", (RANKS, 1))


def config_of(name):
    return EXPERTS if name == "expert" else GPT2


def made(name, seed=0):
    return Training(layout_of(name), config_of(name), seed)


def spoil(model):
    """One number of the last rank's own gradients is infinite."""
    if dist.get_rank() == RANKS - 1:
        held = (local(p.grad) for p in model.parameters() if p.grad is not None)
        next(piece for piece in held if piece.numel()).view(-1)[0] = math.inf


def guarded(training, guard, number):
    """A step under the guard; whether it was taken."""
    guard.begin()
    training.backward(number)
    if number == BAD:
        spoil(training.model)
    verdict = guard.look(None, [p.grad for p in training.model.parameters()])
    if verdict.take:
        training.take()
    return verdict.take


class Run(Training):
    """Its step in two halves, and its states."""

    def __init__(self, name, seed):
        super().__init__(layout_of(name), config_of(name), seed)
        self.part = RankState(self.model, self.optimizer, layout=name)
        self.state = TrainingState.of(self.model, self.optimizer, layout=name)

    def take(self):
        clip_grad_norm(self.wrapped, MAX_NORM)
        self.optimizer.step()


def survives(folder, name):
    """Steps 0 and 1 under the guard, a bad one between them; then step 2 three times: at once, from the memory of the
    other rank, of which this one has lost its own, and from the file.
    """
    run, guard = Run(name, 0), LossGuard()
    taken = [guarded(run, guard, number) for number in (0, BAD, 1)]
    copies = PeerCopies(run.part)
    copies.after(LAST)
    copies.finish()
    checkpoints = Checkpoints(folder / name)
    checkpoints.save(LAST, run.state.snapshot(), run.state.about())
    run.step(LAST)
    ends = [full_state_dict(run.wrapped)]
    from_memory, from_file = Run(name, 5), Run(name, 6)
    kept = None if dist.get_rank() == 0 else copies.kept
    steps = [PeerCopies(from_memory.part, kept=kept).recover()]
    steps.append(from_file.state.load(checkpoints.latest()))
    for again in (from_memory, from_file):
        again.step(LAST)
        ends.append(full_state_dict(again.wrapped))
    return taken, steps, ends


def all_survive(folder):
    return {name: survives(folder, name) for name in (*SHARDED, *CUT)}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return list(launch(all_survive, RANKS, tmp_path_factory.mktemp("around")))


@pytest.mark.parametrize("name", [*SHARDED, *CUT])
def test_with_a_guard_copies_in_memory_and_a_checkpoint_it_ends_as_one_process(found, name):
    expected = alone(config_of(name)).state
    for rank in found:
        taken, steps, ends = rank[name]
        assert taken == [True, False, True]
        assert steps == [LAST, LAST]
        for end in ends:
            compare(end, expected, 1e-10, "value")
            assert all(torch.equal(end[n], ends[0][n]) for n in end), "to the bit"


# --- virtual ranks and halving with ZeRO --------------------------------------------------------------------------


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def mean_loss(x, y):
    return nn.functional.mse_loss(x, y)


def samples(number):
    make = torch.Generator().manual_seed(number)
    return [torch.randn(8, n, generator=make, dtype=torch.double) for n in (6, 3)]


def zero1(model):
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.05)


def with_zero1():
    """Two steps of virtual ranks, and two of halving, the second time in ZeRO-2's wrapper."""
    virtual = VirtualRanks(mlp(), 4)
    optimizer = zero1(virtual.module)
    halved, group = mlp(), dist.group.WORLD
    other = zero1(halved)
    of_zero2 = mlp()
    third = zero1(of_zero2)
    wrapped = ShardedDataParallel(of_zero2, third)
    for number in range(2):
        x, y = samples(number)
        virtual.backward(lambda v, x=x, y=y: mean_loss(virtual(x[v::4]), y[v::4]))
        optimizer.step()
        mine = [t.chunk(RANKS)[dist.get_rank()] for t in (x, y)]
        train_step_with_halving(halved, mean_loss, other, *mine, micro_batch=2, group=group)
        train_step_with_halving(wrapped, mean_loss, third, *mine, micro_batch=2)
    return [model.state_dict() for model in (virtual.module, halved, of_zero2)]


def test_virtual_ranks_and_halving_with_states_on_their_owners_are_one_process():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for number in range(2):
        x, y = samples(number)
        optimizer.zero_grad()
        mean_loss(model(x), y).backward()
        optimizer.step()
    for states in launch(with_zero1, RANKS):
        for state in states:
            compare(state, model.state_dict(), 1e-10, "value")


# --- what is refused ------------------------------------------------------------------------------------------------


def replica(training):
    Replicated(training.model, training.optimizer)


def virtual_ranks(training):
    VirtualRanks(training.model, 4)


def halving(training):
    x = torch.zeros(2, 4, dtype=torch.long)
    train_step_with_halving(training.model, mean_loss, training.optimizer, x, x)


SLICES = "slice, of (tensor|expert) parallelism"
REFUSED = {
    **{
        f"elastic over {n}": (n, replica, "lies in parts.*One rank's state is not everybody's")
        for n in (*CUT, "FullyShardedDataParallel")
    },
    **{
        f"elastic over {n}": (n, replica, "keeps each state on one rank alone")
        for n in ("ZeRO-1", "ZeRO-2")
    },
    **{
        f"VirtualRanks over {n}": (n, virtual_ranks, f"^VirtualRanks.*({SLICES}|average_gradients)")
        for n in CUT
    },
    **{
        f"VirtualRanks over {n}": (n, virtual_ranks, "reduced and averaged by its own hooks")
        for n in SHARDED[:2]
    },
    **{
        f"halving over {n}": (
            n,
            halving,
            "^train_step_with_halving.*lies in parts.*Its forward waits",
        )
        for n in (*SHARDED[:2], *CUT)
    },
}


def refusals():
    said = {}
    for key, (name, act, _) in REFUSED.items():
        try:
            act(made(name))
        except ValueError as error:
            said[key] = str(error)
    return said


def test_what_cannot_work_is_refused_with_the_reason():
    for said in launch(refusals, RANKS):
        assert said.keys() == REFUSED.keys()
        for key, (_, _, sentence) in REFUSED.items():
            assert re.search(sentence, said[key], re.DOTALL), (key, said[key])
