"""Memory grows by the same amount with each step, until the job is killed hours later; shorter runs never show it.

Cause: the sum of the validation losses is a tensor with a graph, and in it is the graph of each step, with all that
backward would need; nobody calls it. (Of a loss that was trained on, backward has freed most of it.)
Found by: the bytes that each step leaves alive, and the line that made them.
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
REPAIR = [("val_loss += loss\n", "val_loss += loss.item()\n")]


def train(model, optimizer, batches, validation):
    x_val, y_val = validation
    val_loss = 0.0
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        loss = nn.functional.cross_entropy(model(x_val), y_val)
        val_loss += loss
    return val_loss / len(batches)


def step():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1 + dist.get_rank())
    *batches, validation = (
        (torch.randn(32, 64, generator=data), torch.randint(10, (32,), generator=data))
        for _ in range(13)
    )
    mean = train(model, optimizer, batches, validation)
    if dist.get_rank() == 0:
        print(f"validation loss {mean:.3f}")
    return {}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
