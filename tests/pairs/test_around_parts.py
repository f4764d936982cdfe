"""Around a run whose ranks each have something of their own: stages of a pipeline, a compression's residuals."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse import launch
from dtcourse.compression import CompressionState, TopK, compression_hook
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.fault_tolerance import BucketLayout, PeerCopies, RankState
from dtcourse.fault_tolerance.guard import LossGuard, Spikes
from dtcourse.parameters.placement import local
from dtcourse.parameters.whole import full_state_dict
from dtcourse.verify import compare
from tests.pairs.layouts import GPT2, alone, used
from tests.pairs.pipelines import Piped

LAST = 2


# --- copies of a pipeline's stages in other ranks' memory -------------------------------------------------------------


class Staged:
    """A pipeline's run, and what a rank keeps of it."""

    def __init__(self, layout, seed):
        training = layout.training(GPT2, seed)
        self.step, self.module = training.step, training.wrapped
        self.part = RankState(self.module, training.optimizer, layout=str(layout))

    def state(self):
        return full_state_dict(self.module)


def loses_a_stage(layout):
    """Rank 0 has nothing any more after step 1: the whole states of the undisturbed run, and of the other one."""
    run, again = Staged(layout, 0), Staged(layout, 5)
    for number in range(LAST):
        run.step(number)
    copies = PeerCopies(run.part)
    copies.after(LAST)
    copies.finish()
    kept = None if dist.get_rank() == 0 else copies.kept
    assert PeerCopies(again.part, kept=kept).recover() == LAST
    for one in (run, again):
        one.step(LAST)
    return run.state(), again.state()


@pytest.mark.parametrize(
    "layout",
    [
        Piped("nothing", "1F1B", (1, 2)),
        Piped("data_parallel", "1F1B", (2, 2)),
        Piped("fully_shard", "1F1B", (2, 2)),
    ],
    ids=str,
)
def test_a_lost_rank_of_a_pipeline_gets_its_stage_from_its_neighbour(layout):
    expected = used(alone(GPT2).state)
    for undisturbed, recovered in launch(loses_a_stage, layout.ranks, layout):
        compare(recovered, undisturbed, 0.0, "value")
        compare(recovered, expected, 1e-12, "value", norm=2)


# --- a compression's residuals ----------------------------------------------------------------------------------------


class Compressed:
    """Training whose gradients are compressed with error feedback."""

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
        self.model = DistributedDataParallel(model)
        self.residuals = CompressionState(TopK(0.2))
        self.model.register_comm_hook(self.residuals, compression_hook)
        self.residuals.know(self.model.reducer.buckets)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        own = {"residuals": self.residuals, "buckets": BucketLayout(self.model.reducer)}
        self.part = RankState(self.model, self.optimizer, own=own)

    def backward(self, number, times=1.0):
        generator = torch.Generator().manual_seed(10 * number + dist.get_rank())
        x, y = (torch.randn(5, n, generator=generator).double() for n in (6, 3))
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(times * x), times * y)
        loss.backward()
        return loss

    def bits(self):
        return [local(p).detach().clone() for p in self.model.parameters()]


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.bits(), other.bits(), strict=True))


def loses_residuals(with_residuals):
    run, again = Compressed(), Compressed(seed=5)
    for one in (run, again) if not with_residuals else ():
        one.part.others.pop("residuals")
    for number in range(3):
        run.backward(number)
        run.optimizer.step()
    copies = PeerCopies(run.part)
    copies.after(3)
    copies.finish()
    PeerCopies(again.part, kept=None if dist.get_rank() == 0 else copies.kept).recover()
    for one in (run, again):
        for number in range(3, 6):
            one.backward(number)
            one.optimizer.step()
    return equal(run, again)


def both():
    return loses_residuals(True), loses_residuals(False)


def test_a_lost_rank_gets_what_its_compression_had_left_out():
    assert list(launch(both, 3)) == [(True, False)] * 3


SPIKE, STEPS = 12, 16


def guarded(bad, touched=True):
    """A run of which batch SPIKE is 10,000 times as large, or is not there; how many steps were left out."""
    run, left_out = Compressed(), 0
    guard = LossGuard(touched=[run.residuals] if touched else [], spikes=Spikes(window=16, least=8))
    for number in range(STEPS):
        if number == SPIKE and not bad:
            continue
        guard.begin()
        loss = run.backward(number, 1e4 if number == SPIKE else 1.0)
        if guard.look(loss, [p.grad for p in run.model.parameters()]).take:
            run.optimizer.step()
        else:
            left_out += 1
    return run, left_out


def not_named():
    """The guard asks for the state in the first step, and nothing of the run has changed."""
    with pytest.raises(ValueError) as caught:
        guarded(False, touched=False)
    return str(caught.value)


def test_the_guard_asks_for_what_a_compression_keeps():
    for said in launch(not_named, 2):
        assert said.startswith(
            "the communication hook of this model keeps a CompressionState from step to step"
        )
        assert "LossGuard(touched=[..., state])" in said


def of_torchs_wrapper(touched):
    """PyTorch's own wrapper with the course's hook: the same is asked."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(6, 3))
    state = CompressionState(TopK(0.2))
    model.register_comm_hook(state, compression_hook)
    guard = LossGuard(touched=[state] if touched else [])
    guard.begin()
    loss = model(torch.ones(2, 6)).sum()
    loss.backward()
    return guard.look(loss).take


def both_of_torchs():
    with pytest.raises(ValueError, match="keeps a CompressionState from step to step"):
        of_torchs_wrapper(False)
    return of_torchs_wrapper(True)


def test_it_asks_under_pytorchs_wrapper_too():
    assert all(launch(both_of_torchs, 2))


def leaves_out():
    (with_it, one), (without, none) = guarded(True), guarded(False)
    return equal(with_it, without), one, none


def test_a_batch_left_out_leaves_nothing_in_a_compression():
    assert list(launch(leaves_out, 2)) == [(True, 1, 0)] * 2
