"""A run under a technique that cuts it: for the tests of copies in other ranks' memory."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.fault_tolerance import BucketLayout, RandomStates, RankState, TrainingState
from dtcourse.parameters.placement import local
from dtcourse.sharding import ZeroRedundancyOptimizer, fully_shard

WIDTH = 6


class Sharded:
    """Adam, dropout and a schedule, under a technique that cuts all, the optimizer's states, or nothing. Under full
    sharding each rank has batch statistics of its own.
    """

    def __init__(self, technique, seed=0):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(4, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.3), nn.Linear(WIDTH, 1)
        )
        own = {"random": RandomStates()}
        if technique == "fully_shard":
            fully_shard(model)
        else:
            model = DistributedDataParallel(model)
            own["buckets"] = BucketLayout(model.reducer)
        if technique == "ZeRO-1":
            self.optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.05)
        else:
            self.optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        self.model = model
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        shared = {"schedule": self.schedule}
        self.state = RankState(model, self.optimizer, shared, own, layout=technique)
        self.saved = TrainingState.of(
            model, self.optimizer, shared=shared, own=own, layout=technique
        )
        self.state_dict, self.load_state_dict = self.state.state_dict, self.state.load_state_dict
        torch.manual_seed(seed + 10 * dist.get_rank())

    def step(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(5, 4)).square().mean().backward()
        self.optimizer.step()
        self.schedule.step()

    def bits(self):
        tensors = [local(p).clone() for p in self.model.parameters()]
        return [*tensors, *(b.clone() for b in self.model.buffers()), torch.rand(1)]
