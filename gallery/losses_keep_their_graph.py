"""Memory grows by the same amount with each step, until the job is killed hours later; shorter runs never show it.

Cause: the sum of the losses for the epoch's mean is a tensor with a graph, and the graph of each step is in it.
Found by: what is alive after each step: a graph that grows, and the variable that holds it.
Repair: add the number, not the tensor. Known from the PyTorch FAQ ("my model reports out of memory"), and from
every loop that collects losses for a plot.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
KIND = "leaks"
TOOL = "memory"
NAMES = ("ranks 0 and 1", "loss = nn.functional.cross_entropy")
REPAIR = [("total_loss += loss\n", "total_loss += loss.item()\n")]


def train_one_epoch(model, optimizer, batches):
    total_loss = 0.0
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total_loss += loss
    return total_loss / len(batches)


def step():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1 + dist.get_rank())
    batches = [
        (torch.randn(32, 64, generator=data), torch.randint(10, (32,), generator=data))
        for _ in range(12)
    ]
    for epoch in range(2):
        mean = train_one_epoch(model, optimizer, batches)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {mean:.3f}")
    return {}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
