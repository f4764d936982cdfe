"""A bad sample is said to be "skipped", in one rank's log, and with that line the run stands still.

Cause: one rank's batch raises, its handler has it wait for the others at a barrier before it goes on, and these are in
the all_reduce of their gradients. A handler that only one rank enters may not call what all must call.
Found by: the flight recorder's records: where one rank called barrier, the others called all_reduce.
Repair: before the batch is used the ranks agree whether all of them can, and all skip it or none.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

RANKS = 3
KIND = "hangs"
TOOL = "hang"
NAMES = ("Rank 1", "barrier", "dist.barrier()  # the others", "all_reduce")
REPAIR = [
    (
        "        try:\n",
        "        good = torch.tensor(int(y.max() < 3))\n"
        "        dist.all_reduce(good, op=dist.ReduceOp.MIN)\n"
        "        if not good:\n            continue\n        try:\n",
    ),
]


def batches(rank):
    torch.manual_seed(rank)
    for number in range(3):
        x, y = torch.randn(4, 6), torch.randint(3, (4,))
        if rank == 1 and number == 1:
            y[2] = 3  # an annotator's typing error
        yield x, y


def step():
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    for number, (x, y) in enumerate(batches(dist.get_rank())):
        optimizer.zero_grad()
        try:
            F.cross_entropy(model(x), y).backward()
        except (IndexError, RuntimeError) as error:
            print(f"batch {number} skipped: {error}")
            dist.barrier()  # the others should not run ahead
            continue
        optimizer.step()
        steps += 1
    return {"steps": steps}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
