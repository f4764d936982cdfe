"""A step of weighted gradients sends once, and only when all its samples are weighed; its time is this rank's own."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse import emulation, launch
from dtcourse.collectives import traffic
from dtcourse.compression import MajorityVote, compression_hook
from dtcourse.data_parallel import SyncBatchNorm
from dtcourse.emulation import EmulatedNetwork
from dtcourse.heterogeneous import Balance, WeightedDataParallel

SAMPLES, FEATURES = 3, 4


def build(*more):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(FEATURES, FEATURES), *more).double()


def batch():
    generator = torch.Generator().manual_seed(dist.get_rank())
    return torch.randn(SAMPLES, FEATURES, dtype=torch.float64, generator=generator)


def backward(model, weighed=None):
    model.weigh(model(batch()).square().mean(), weighed).backward()


# --- mistakes, made on all ranks at once so that one launch shows them --------------------------------------------


def too_few(model):
    with model.step(SAMPLES):
        backward(model, 1)


def all_weighed(model):
    with model.step(SAMPLES):
        backward(model)


def averaged_and_again(model):
    with model.step(SAMPLES):
        backward(model, SAMPLES)
        model(batch())


def weighed_and_no_backward(model):
    with model.step(SAMPLES):
        model.weigh(torch.ones(()))


def all_of_it_local(model):
    with model.step(SAMPLES), model.no_sync():
        backward(model)


def too_few_and_local(model):
    with model.no_sync(), model.step(SAMPLES):
        backward(model, 2)


def two_forwards(model):
    with model.step(SAMPLES):
        with model.no_sync():
            backward(model, 1)
        backward(model, 2)


MISTAKES = {
    "too few": (too_few, "weighed losses of 1 sample and said that it had 3; nothing of them has"),
    "again": (averaged_and_again, "have been averaged, and another backward would average again"),
    "no backward": (weighed_and_no_backward, "has ended and its gradients were not averaged"),
    "all local": (all_of_it_local, "has ended and its gradients were not averaged"),
    "too few, local": (too_few_and_local, "weighed losses of 2 samples and said that it had 3"),
}


class Gate(nn.Linear):
    """Like a mixture's: it makes a loss of its own."""

    auxiliary_loss = None


def normalised():
    return SyncBatchNorm.convert(build(nn.BatchNorm1d(FEATURES)))


def all_mistakes():
    said, sent = {}, {}
    ranks = dist.get_world_size()
    pair, single = dist.new_group([0, 1]), dist.new_group([2])
    group = single if dist.get_rank() == 2 else pair
    by_twos = SyncBatchNorm.convert(build(nn.BatchNorm1d(FEATURES)), group)

    def tried(name, act):
        with traffic.counting() as counted:
            try:
                act()
                said[name] = "nothing"
            except (ValueError, RuntimeError) as error:
                said[name] = str(error)
        sent[name] = counted.bytes_sent()

    for name, (act, _) in MISTAKES.items():
        model = WeightedDataParallel(build())
        tried(name, lambda act=act, model=model: act(model))
    normal = WeightedDataParallel(normalised())
    tried("pieces", lambda: two_forwards(normal))
    tried("statistics of two", lambda: WeightedDataParallel(by_twos))
    vote = WeightedDataParallel(build())
    tried("signs", lambda: vote.register_comm_hook(MajorityVote(), compression_hook))
    forgets, no_hook = (WeightedDataParallel(build()) for _ in range(2))
    forgets.register_comm_hook(None, lambda state, bucket: None)
    tried("nothing returned", lambda: all_weighed(forgets))
    tried("no hook", lambda: no_hook.register_comm_hook(None, lambda bucket: bucket))
    tried("gates", lambda: WeightedDataParallel(build(Gate(FEATURES, 2))))
    model = WeightedDataParallel(normalised())
    with model.step(SAMPLES):
        backward(model)
    tried("seconds of all", lambda: model.seconds)
    number = 8 * (ranks - 1)  # each rank's samples go round to the others
    return said, {name: sent[name] <= number for name in MISTAKES if name != "again"}


@pytest.fixture(scope="module")
def run():
    return launch(all_mistakes, 3, backend="ring")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        *((what, words) for what, (_, words) in MISTAKES.items()),
        ("pieces", "a second forward in this step: batch statistics would be those of a piece"),
        (
            "statistics of two",
            r"statistics over ranks \[.*\], and the batch is that of ranks \[0, 1, 2\]",
        ),
        ("signs", "MajorityVote takes the signs of gradients, and a sign has no weight"),
        ("nothing returned", r"returned None \(a return is missing at its end\)"),
        ("no hook", r"a communication hook is called as hook\(state, bucket\)"),
        ("gates", "makes a loss of its own that is no mean over samples"),
        ("seconds of all", "this rank's seconds are those of the slowest"),
    ],
)
def test_a_mistake_is_said(run, what, words):
    for said, _ in run:
        assert re.search(words, said[what]), said[what]


def test_nothing_but_the_number_of_samples_has_been_sent_then(run):
    for _, nothing in run:
        assert nothing == dict.fromkeys(nothing, True) and len(nothing) == 4


# --- what a step took ---------------------------------------------------------------------------------------------


class Slept(nn.Module):
    """Each sample takes as long as this rank needs for one."""

    def forward(self, x):
        emulation.sleep(len(x) * (0.03 if dist.get_rank() == 1 else 0.01))
        return x


def accumulated_and_synchronised():
    rank = dist.get_rank()
    local = WeightedDataParallel(build(Slept()))
    with local.no_sync(), local.step(SAMPLES):
        backward(local)
    balance = Balance(3 * SAMPLES)
    found = [local.seconds, balance.after(local.seconds)]
    model = WeightedDataParallel(SyncBatchNorm.convert(build(Slept(), nn.BatchNorm1d(FEATURES))))
    balance, x = Balance(42), torch.randn(42, FEATURES, dtype=torch.float64)
    for _ in range(6):
        mine = balance.mine
        with model.step(len(mine)):
            y = model(x[mine.start : mine.stop])
            model.weigh(F.mse_loss(y, torch.zeros_like(y))).backward()
        balance.after(model.seconds)
    return rank, found, balance.shares


def test_waiting_inside_of_a_forward_is_not_this_rank_s_work():
    """Batch statistics wait for the slowest rank: measured with it, all ranks would look alike."""
    run = launch(accumulated_and_synchronised, 3, network=EmulatedNetwork(1e-6), clock="virtual")
    for rank, (seconds, moved), shares in run:
        assert seconds == pytest.approx(SAMPLES * (0.03 if rank == 1 else 0.01)) and not moved
        assert shares == [18, 6, 18]
