"""On eight GPUs with 4 images each the model ends worse than on one GPU with 32, at the same settings.

Cause: under DistributedDataParallel batch normalisation takes the mean and the variance of a rank's own few
samples, so the model that is trained depends on the number of ranks.
Found by: the gradients against those of one process on the whole batch.
Repair: statistics of all ranks (torch's SyncBatchNorm; it wants GPUs, so here it is written out). Known from every
forum; for detection and contrastive learning, with few samples a GPU, it decides.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 4
KIND = "silently wrong"
TOOL = "gradients"
NAMES = ("0.weight",)
REPAIR = [("DistributedDataParallel(net)", "DistributedDataParallel(synchronised(net))")]


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)  # each rank's loss depends on it
        return gradient


class OverRanks(nn.BatchNorm1d):
    """Batch normalisation over all ranks' samples, equally many on each."""

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        moments = torch.stack([x.mean(0), (x * x).mean(0)])
        mean, square = SumOverRanks.apply(moments) / dist.get_world_size()
        normalised = (x - mean) * (square - mean**2 + self.eps).rsqrt()
        return normalised * self.weight + self.bias


def synchronised(module):
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm1d):
            module.add_module(name, OverRanks(child.num_features))
        else:
            synchronised(child)
    return module


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)).double()


def whole_batch():
    data = torch.Generator().manual_seed(1)
    x = torch.randn(4 * RANKS, 8, generator=data, dtype=torch.float64)
    return x, torch.randint(3, (4 * RANKS,), generator=data)


def step():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    net = build()
    model = DistributedDataParallel(net)
    x, y = (part.chunk(world_size)[rank] for part in whole_batch())
    nn.functional.cross_entropy(model(x), y).backward()
    return {"gradients": {name: p.grad for name, p in net.named_parameters()}}


def reference():
    net = build()
    x, y = whole_batch()
    nn.functional.cross_entropy(net(x), y).backward()
    return {"gradients": {name: p.grad for name, p in net.named_parameters()}}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
