"""What the elastic tests train: two models at once, one by VirtualRanks, one by DDP in double, and their samples."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.data import DistributedSampler
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.fault_tolerance import VirtualRanks
from dtcourse.fault_tolerance.elastic import Elastic
from dtcourse.fault_tolerance.replicated import Replicated
from dtcourse.launch import send_message

VIRTUAL, SAMPLES, GLOBAL_BATCH = 4, 60, 12
DIES, JOINS, LEAVES, LAST = 3, 5, 7, 9  # in or after which step
DATA = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1)).double()


class Log(list):
    """Of each step, its loss and the samples that all ranks have read: a part of the state, as the steps are."""

    def state_dict(self):
        return {"steps": list(self)}

    def load_state_dict(self, state):
        self[:] = state["steps"]


class Run:
    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.virtual = VirtualRanks(
            nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 1)),
            VIRTUAL,
            seed=seed,
        )
        self.ddp = DistributedDataParallel(
            nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
        )
        self.optimizers = [
            torch.optim.Adam(one.parameters(), lr=0.05) for one in (self.virtual, self.ddp)
        ]
        self.sampler = DistributedSampler(SAMPLES, dist.get_world_size(), dist.get_rank())
        self.log = Log()
        self.states = (
            Replicated(self.virtual, self.optimizers[0], {"draws": self.virtual.states}),
            Replicated(self.ddp, self.optimizers[1], {"data": self.sampler, "log": self.log}),
        )

    def state_dict(self):
        return {str(i): state.state_dict() for i, state in enumerate(self.states)}

    def load_state_dict(self, state):
        for i, one in enumerate(self.states):
            one.load_state_dict(state[str(i)])

    def step(self):
        mine = GLOBAL_BATCH // dist.get_world_size()
        if self.sampler.consumed + GLOBAL_BATCH > SAMPLES:
            self.sampler.set_epoch(self.sampler.epoch + 1)
        read = [index for index, _ in zip(self.sampler, range(mine), strict=False)]
        loss = self.ddp(DATA[read]).square().mean()
        loss.backward()
        # Virtual rank v has the samples v, v + 4, ... of the whole batch, whoever computes it.
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, (read, loss.item()))
        batch = sorted(index for theirs, _ in everyone for index in theirs)
        x = DATA.float()[batch]
        self.virtual.backward(lambda v: self.virtual(x[v::VIRTUAL]).square().mean())
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.sampler.advance(mine)
        self.log.append((sum(one for _, one in everyone) / len(everyone), batch))

    def outcome(self):
        bits = b"".join(value.numpy().tobytes() for value in self.virtual.state_dict().values())
        return bits, {n: v.clone() for n, v in self.ddp.state_dict().items()}, list(self.log)


def undisturbed():
    """The same steps on one rank."""
    run = Run()
    for _ in range(LAST):
        run.step()
    return run.outcome()


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def train(elastic: Elastic, folder: Path):
    """Worker 3 dies while the first generation's run is built, worker 1 in step DIES. In the steps JOINS and LEAVES all
    wait for the test, which has one join and one leave after them.
    """

    def build():
        if elastic.worker == 3:
            dies()
        return Run(seed=elastic.worker if elastic.step is not None else 0)

    def step(run, number):
        if number == DIES and elastic.worker == 1:
            dies()
        run.step()
        if number in (JOINS, LEAVES):
            send_message(number)
            while not (folder / str(number)).exists():
                time.sleep(0.01)

    run = elastic.run(build, step, LAST)
    return elastic.left, elastic.step, run.outcome()
