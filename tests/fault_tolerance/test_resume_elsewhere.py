"""A run that resumes on another number of ranks, and one that must not resume: another model, optimizer, or data."""

from __future__ import annotations

import copy
import json
import pickle
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.compression import CompressionState, TopK
from dtcourse.data import DistributedSampler, ResumableLoader
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.fault_tolerance import (
    BucketLayout,
    Checkpoints,
    RandomStates,
    TrainingState,
    fingerprint,
    folders,
    mark,
)
from dtcourse.parameters.whole import full_state_dict
from dtcourse.sharding import fully_shard
from dtcourse.verify import compare

SAMPLES, GLOBAL_BATCH = 60, 12
DATA = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1)).double()


class Run:
    """Training in double precision, without dropout: its losses depend on the samples alone, not on who reads them."""

    def __init__(
        self, technique, seed=0, width=5, optimizer=torch.optim.Adam, data=DATA, same=None
    ):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 1)).double()
        self.model = (
            fully_shard(model) if technique == "fully_shard" else DistributedDataParallel(model)
        )
        self.optimizer = optimizer(self.model.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.8)
        sampler = DistributedSampler(len(data), world_size, rank)
        self.loader = ResumableLoader(data, sampler, GLOBAL_BATCH // world_size)
        own = {"random": RandomStates()}
        if technique == "DDP":
            own["buckets"] = BucketLayout(self.model.reducer)
        self.state = TrainingState.of(
            self.model,
            self.optimizer,
            shared={"data": self.loader, "schedule": self.schedule},
            own=own,
            same={"data": fingerprint(data), **(same or {})},
            layout=technique,
        )

    def train(self, steps):
        """Losses, and the samples that all ranks read together, of so many steps."""
        losses, read = [], []
        batches = iter(self.loader)
        for _ in range(steps):
            x = next(batches)
            loss = self.model(x).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            losses.append(mean.item() / dist.get_world_size())
            everyone = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, x[:, 0].tolist())
            read.append(sorted(value for mine in everyone for value in mine))
        return losses, read


def first_part(root, technique):
    run = Run(technique)
    run.train(2)
    Checkpoints(root).save(2, run.state.snapshot(), run.state.about())
    state = full_state_dict(run.model)
    return state, run.train(3)


def second_part(root, technique):
    run = Run(technique, seed=7)
    assert run.state.load(Checkpoints(root).latest()) == 2
    drawn = torch.rand(1).item()
    state = full_state_dict(run.model)
    return state, run.train(3), drawn


def test_on_another_number_of_ranks_state_and_samples_are_exact_and_losses_to_1e_10(tmp_path):
    saved, (losses, read) = launch(first_part, 4, tmp_path, "fully_shard")[0]
    for technique, ranks in (("fully_shard", 3), ("fully_shard", 2), ("fully_shard", 1)):
        run = launch(second_part, ranks, tmp_path, technique)
        for state, (losses_here, read_here), _ in run:
            compare(state, saved, 0.0, "value")
            assert read_here == read
            assert losses_here == pytest.approx(losses, rel=1e-10)
        assert len({drawn for *_, drawn in run}) == ranks, "each rank draws its own numbers"


# --- what must not be loaded ----------------------------------------------------------------------------------------


def refused(root):
    """Each run that is another one: what it is told, and that nothing of it, or of the checkpoint, has changed."""
    run = Run("DDP", same={"version": 1})
    run.train(2)
    checkpoints = Checkpoints(root)
    checkpoints.save(2, run.state.snapshot(), run.state.about())
    files_before = {p: p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
    shuffled = DATA.flip(0)
    others = {
        "model": {"width": 4, "same": {"version": 1}},
        "optimizer": {"optimizer": torch.optim.SGD, "same": {"version": 1}},
        "data": {"data": shuffled, "same": {"version": 1}},
        "fewer": {"data": DATA[:48], "same": {"version": 1}},
        "version": {"same": {"version": [1, 2]}},
    }
    said = {}
    for name, options in others.items():
        other = Run("DDP", seed=3, **options)
        before = everything(other)
        with pytest.raises(ValueError) as caught:
            other.state.load(checkpoints.at(2))
        compare(everything(other), before, 0.0, name)
        said[name] = str(caught.value)
    assert files_before == {p: p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
    return said


def everything(run):
    states = {f"model {n}": v.clone() for n, v in run.model.state_dict().items()}
    parts = {**run.state.shared, **run.state.own}
    states["random"] = torch.get_rng_state().double()
    small = {n: p.state_dict() for n, p in parts.items() if n != "random"}
    states["small"] = torch.tensor(list(pickle.dumps(copy.deepcopy(small)))).double()
    assert not run.optimizer.state
    return states


def test_another_run_is_refused_with_what_differs_and_nothing_changes(tmp_path):
    sentences = {
        "model": r"0.weight is \[4, 6\] in the model and \[5, 6\] in the checkpoint. Nothing was loaded",
        "optimizer": "belongs to another run: optimizer is Adam there and SGD here. Nothing was loaded",
        "data": r"data is 60 samples, \w{16} there and 60 samples, \w{16} here",
        "fewer": r"data is 60 samples, \w{16} there and 48 samples, \w{16} here",
        "version": r"version is 1 there and \[1, 2\] here",
    }
    for said in launch(refused, 2, tmp_path):
        for name, sentence in sentences.items():
            assert re.search(sentence, said[name], re.DOTALL), said[name]


def with_residuals(root, save):
    model = nn.Linear(2, 2)
    state = CompressionState(TopK(0.5))
    training = TrainingState.of(
        model, torch.optim.SGD(model.parameters(), lr=0.1), own={"left out": state}
    )
    checkpoints = Checkpoints(root)
    if save:
        return str(checkpoints.save(1, training.snapshot(), training.about()))
    with pytest.raises(ValueError) as caught:
        training.load(checkpoints.latest())
    return str(caught.value)


def test_what_a_rank_has_alone_is_not_given_to_other_ranks(tmp_path):
    launch(with_residuals, 2, tmp_path, True)
    for said in launch(with_residuals, 1, tmp_path, False):
        assert "left out is a state of each of 2 ranks" in said
        assert "this run has 1 rank (" in said
        assert "CompressionState does not say how" in said
        assert "Go on with 2 ranks cut alike, or give it a load_elsewhere" in said


class Strange:
    def state_dict(self):
        return {"code": Path("somewhere")}

    def load_state_dict(self, state):
        """Never."""


class OfRank:
    def state_dict(self):
        return {"rank": dist.get_rank()}

    def load_state_dict(self, state):
        """Never."""


def cannot_be_saved():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = []
    for shared in ({"strange": Strange()}, {"mine": OfRank()}):
        with pytest.raises(ValueError) as caught:
            TrainingState.of(model, optimizer, shared=shared).snapshot()
        said.append(str(caught.value))
    return said


def test_what_weights_only_would_not_read_and_what_differs_from_rank_to_rank_is_said_at_the_save():
    for strange, differs in launch(cannot_be_saved, 2):
        assert "a checkpoint keeps tensors, numbers, strings" in strange
        assert "PosixPath would have to be called. Nothing was saved" in strange
        assert "mine differs between the ranks" in differs
        assert "belongs to own, not to shared" in differs


def test_the_fingerprint_sees_another_order_and_another_bit():
    data = [(torch.tensor([float(i)]), i % 3) for i in range(16)]
    assert fingerprint(data) == fingerprint(copy.deepcopy(data))
    assert fingerprint(data) != fingerprint(data[::-1])
    other = copy.deepcopy(data)
    other[5][0][0] += 1e-6
    assert fingerprint(data) != fingerprint(other)
    assert fingerprint([]).startswith("0 samples")


def test_a_mark_is_json_that_a_person_can_read(tmp_path):
    aside = folders.begin(tmp_path, 3)
    folders.finish(aside, mark.Mark(3, {}, {"same": {"data": "60 samples"}}))
    line = (tmp_path / "step-00000003" / mark.NAME).read_text().splitlines()[0]
    assert json.loads(line)["about"] == {"same": {"data": "60 samples"}}
