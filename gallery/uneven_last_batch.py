"""Each epoch hangs in its very last step, and only with some numbers of ranks.

Cause: 25 samples over 3 ranks are 9, 8 and 8, so in batches of 2 rank 0 has five steps and the others four. In its
fifth backward rank 0 waits for gradients that nobody else has.
Found by: the flight recorder's records: rank 0 waits in an all_reduce to which the others do not come, having left.
Repair: samples that do not fill a step of all ranks are left out (drop_last of the sampler), or the ranks join
(torch.distributed.algorithms.Join).
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

RANKS = 3
KIND = "hangs"
TOOL = "hang"
NAMES = ("Rank 1", "all_reduce", "rank 0 waits", "loss.backward()")
REPAIR = [
    ("    last = len(x)\n", "    last = len(x) // (size * BATCH) * size * BATCH\n"),
]
BATCH = 2


def step():
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(25, 4), torch.randn(25, 1)
    last = len(x)
    mine = slice(rank, last, size)
    losses = []
    for inputs, targets in zip(x[mine].split(BATCH), y[mine].split(BATCH), strict=True):
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"steps": len(losses)}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
