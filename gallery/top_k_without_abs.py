"""Sparse gradients: with 10 % of them the loss hardly moves, though the paper loses nothing with 1 %.

Cause: top-k of the values is not top-k of their sizes: large negative gradients are never sent.
Found by: the gradients of a step against those of one process that keeps the largest of each rank by a sort.
Repair: choose by the absolute value, send the value itself. Known from snippets of deep gradient compression (Lin
et al. 2018) and from exercises; the same mistake with largest=False keeps the other side.
"""

import torch
import torch.distributed as dist
from torch import nn

RANKS = 4
KIND = "silently wrong"
TOOL = "gradients"
NAMES = ("0.bias",)
REPAIR = [("indices = flat.topk(k).indices", "indices = flat.abs().topk(k).indices")]

KEPT = 0.1  # of a tensor's numbers


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).double()


def batch(rank):
    data = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(32, 16, generator=data, dtype=torch.float64)
    return x, torch.randint(4, (32,), generator=data)


def kept(tensor):
    return max(1, int(KEPT * tensor.numel()))


def average_sparse(gradient):
    """The mean over the ranks of what each has chosen."""
    world_size = dist.get_world_size()
    flat = gradient.flatten()
    k = kept(flat)
    indices = flat.topk(k).indices
    values = flat[indices]
    all_indices = [torch.empty_like(indices) for _ in range(world_size)]
    all_values = [torch.empty_like(values) for _ in range(world_size)]
    dist.all_gather(all_indices, indices)
    dist.all_gather(all_values, values)
    dense = torch.zeros_like(flat)
    for where, what in zip(all_indices, all_values, strict=True):
        dense.index_add_(0, where, what)
    return (dense / world_size).view_as(gradient)


def step():
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x, y = batch(dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.grad = average_sparse(p.grad)
        optimizer.step()
    return {"gradients": {name: p.grad for name, p in model.named_parameters()}}


def reference():
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(5):
        total = [torch.zeros_like(p) for p in model.parameters()]
        for rank in range(RANKS):
            optimizer.zero_grad()
            x, y = batch(rank)
            nn.functional.cross_entropy(model(x), y).backward()
            for p, into in zip(model.parameters(), total, strict=True):
                sizes = p.grad.abs().flatten().sort(descending=True).values
                into += p.grad * (p.grad.abs() >= sizes[kept(p) - 1])
        for p, whole in zip(model.parameters(), total, strict=True):
            p.grad = whole / RANKS
        optimizer.step()
    return {"gradients": {name: p.grad for name, p in model.named_parameters()}}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
