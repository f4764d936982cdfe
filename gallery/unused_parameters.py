"""It hangs now and then, after minutes or hours, always where a batch had no example of the second task.

Cause: a rank whose batch has no such example leaves that task's head out of its forward. DistributedDataParallel waits
for the gradients of all parameters before it sends a bucket, so this rank never sends, and the others wait.
Found by: the flight recorder's records: the others wait in DDP's all_reduce, and this rank is in the call after it.
Repair: find_unused_parameters=True, where DDP walks the graph of each forward; or the head's loss times 0 is added.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

RANKS = 3
KIND = "hangs"
TOOL = "hang"
NAMES = ("Rank 2", "dist.barrier()", "loss.backward()")
REPAIR = [
    (
        "DistributedDataParallel(TwoTasks())",
        "DistributedDataParallel(TwoTasks(), find_unused_parameters=True)",
    ),
]


class TwoTasks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = torch.nn.Linear(6, 8)
        self.label, self.box = torch.nn.Linear(8, 3), torch.nn.Linear(8, 4)

    def forward(self, x, y, boxes, has_box):
        h = torch.relu(self.trunk(x))
        loss = F.cross_entropy(self.label(h), y)
        if has_box.any():
            loss = loss + F.mse_loss(self.box(h[has_box]), boxes[has_box])
        return loss


def step():
    torch.manual_seed(0)
    model = DistributedDataParallel(TwoTasks())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    x, y, boxes = torch.randn(5, 6), torch.randint(3, (5,)), torch.randn(5, 4)
    has_box = torch.rand(5) < (0.0 if dist.get_rank() == 2 else 1.0)
    loss = model(x, y, boxes, has_box)
    loss.backward()
    optimizer.step()
    dist.barrier()
    return {"steps": 1}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
