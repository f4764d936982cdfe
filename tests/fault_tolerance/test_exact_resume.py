"""A run that is cut off and resumed is the undisturbed run, bit for bit: on as many ranks, with the same technique.

Each technique trains with dropout, augmentations drawn by Python and numpy, momentum and a schedule, on 3 ranks, where
the order of a sum counts. Everything is made anew from another seed before it resumes.
"""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import launch
from dtcourse.compression import CompressionState, TopK, compression_hook
from dtcourse.data import DistributedSampler, ResumableLoader
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.fault_tolerance import BucketLayout, Checkpoints, RandomStates, TrainingState
from dtcourse.memory import GradScaler
from dtcourse.parameters.whole import full_state_dict
from dtcourse.sharding import (
    FullyShardedDataParallel,
    ShardedDataParallel,
    ZeroRedundancyOptimizer,
    fully_shard,
)

SAMPLES, BATCH, SAVED, STEPS = (
    40,
    4,
    5,
    9,
)  # on 3 ranks an epoch has 4 steps: it resumes within the second


class Tangled(nn.Module):
    """Used in another order than defined, with dropout: buckets are built anew after the first step. Each
    rank has its own statistics of the batch normalisation; a wrapper may send rank 0's before a forward.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(5))
        self.norm = nn.BatchNorm1d(16, momentum=0.3)

    def forward(self, x):
        for place in (2, 0, 4, 1, 3):
            x = torch.tanh(nn.functional.dropout(self.layers[place](x), 0.1, self.training))
            if place == 0:
                x = self.norm(x)
        return x


def ddp(model):
    return DistributedDataParallel(model, bucket_cap_mb=0.002)


def torch_ddp(model):
    return TorchDDP(model, bucket_cap_mb=0.002)


def compressed(model):
    wrapped = ddp(model)
    wrapped.hook_state = CompressionState(TopK(0.2))
    wrapped.register_comm_hook(wrapped.hook_state, compression_hook)
    wrapped.hook_state.know(wrapped.reducer.buckets)
    return wrapped


def sharded(shard, model):
    for layer in model.layers:
        shard(layer)
    return shard(model)


def zero(stage, model):
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.02)
    wrapped = ShardedDataParallel(model, optimizer, 0.002) if stage == 2 else ddp(model)
    return wrapped, optimizer


TECHNIQUES = {
    "DDP": ddp,
    "PyTorch's DDP": torch_ddp,
    "DDP, compressed": compressed,
    "fully_shard": partial(sharded, fully_shard),
    "FullyShardedDataParallel": partial(sharded, FullyShardedDataParallel),
    "ZeRO-1": partial(zero, 1),
    "ZeRO-2": partial(zero, 2),
}


class Run:
    """Training by one technique, all that it is made of, and what it saves of that."""

    def __init__(self, technique: str, seed: int, leave_out: str = "") -> None:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        for draw in (random.seed, np.random.seed):
            draw(seed + rank)
        torch.manual_seed(seed)
        made = TECHNIQUES[technique](Tangled())
        torch.manual_seed(seed + rank)
        self.model, self.optimizer = made if isinstance(made, tuple) else (made, None)
        if self.optimizer is None:
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.9)
        self.scaler = GradScaler("cpu", init_scale=2.0**127, growth_interval=3, model=self.model)
        data = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(1))
        self.loader = ResumableLoader(data, DistributedSampler(SAMPLES, world_size, rank), BATCH)
        self.step, self.read, self.scales = 0, [], []
        own = {"random": RandomStates()}
        if hasattr(self.model, "reducer") and technique != "PyTorch's DDP":
            own["buckets"] = BucketLayout(self.model.reducer)
        if hasattr(self.model, "hook_state"):
            own["residuals"] = self.model.hook_state
        shared = {"data": self.loader, "schedule": self.schedule, "scaler": self.scaler}
        module = self.model.module if isinstance(self.model, TorchDDP) else self.model
        self.state = TrainingState.of(
            module,
            self.optimizer,
            shared={n: part for n, part in shared.items() if n != leave_out},
            own={n: part for n, part in own.items() if n != leave_out},
            layout=technique,
        )

    def take_step(self, x) -> None:
        """On augmented samples: a shift by Python's draw, noise by numpy's."""
        self.read.append(x[:, 0].tolist())
        noise = np.random.standard_normal(16)  # noqa: NPY002
        x = x + random.random() + torch.from_numpy(noise).float()
        loss = 16 * self.model(x).square().mean()  # at first too much for its scale
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.step += 1
        self.scales.append(self.scaler.get_scale())

    def train(self, last: int, checkpoints=None) -> None:
        while self.step < last:
            self.loader.set_epoch(self.step // 4)
            for x in self.loader:
                self.take_step(x)
                if checkpoints is not None and self.step == SAVED:
                    checkpoints.save(self.step, self.state.snapshot(), self.state.about())
                if self.step == last:
                    break

    def bits(self):
        module = self.model.module if isinstance(self.model, TorchDDP) else self.model
        whole = full_state_dict(module)
        return b"".join(value.numpy().tobytes() for value in whole.values()), self.read[-4:]


def resumed(root, technique, leave_out=""):
    """Whether the resumed run is the undisturbed one on this rank: in its weights, in the samples that it read."""
    checkpoints = Checkpoints(root)
    run = Run(technique, 0, leave_out)
    run.train(STEPS, checkpoints)
    again = Run(technique, 100, leave_out)
    if technique == "PyTorch's DDP" and leave_out != "first step":
        again.model(
            torch.ones(BATCH, 16)
        ).sum().backward()  # its next forward builds the buckets as they were
        again.optimizer.zero_grad()
    again.step = again.state.load(checkpoints.latest())
    again.train(STEPS)
    (weights, read), (weights_again, read_again) = run.bits(), again.bits()
    assert min(run.scales[:SAVED]) < 2.0**127, "a step was skipped before"
    assert run.scales[SAVED] >= run.scales[SAVED - 1], "and the first one after it is taken"
    return weights == weights_again, read == read_again


def all_resumed(root, techniques):
    return {name: resumed(root / name, name) for name in techniques}


def test_a_resumed_run_is_the_undisturbed_one_bit_for_bit(tmp_path):
    for said in launch(all_resumed, 3, tmp_path, list(TECHNIQUES)):
        assert said == dict.fromkeys(TECHNIQUES, (True, True))


LEFT_OUT = [
    ("DDP", "random"),
    ("DDP", "buckets"),  # it starts with other ones, and a sum of three in another order
    ("DDP", "schedule"),
    ("DDP", "scaler"),
    ("DDP, compressed", "residuals"),
    ("PyTorch's DDP", "first step"),
    ("ZeRO-2", "buckets"),
]


def all_left_out(root):
    return {(name, part): resumed(root / name / part, name, part) for name, part in LEFT_OUT}


def test_each_state_is_needed(tmp_path):
    """A run that resumes without one of them reads the same samples, and is another run."""
    for said in launch(all_left_out, 3, tmp_path):
        assert {what for what, (same, _) in said.items() if same} == set()
        assert all(read for _, read in said.values())
