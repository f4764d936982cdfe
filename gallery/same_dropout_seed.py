"""Dropout regularises less, the more ranks there are; nothing else is different.

Cause: the seed that gives all ranks the same model also gives them the same masks afterwards: each unit is dropped on
all ranks at once or on none, where a batch of one process would have another mask for each sample.
Found by: the states of the generators where ranks draw, for inputs that are not the same.
Repair: after the model is built, each rank seeds itself anew.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
KIND = "silently wrong"
TOOL = "seeds"
NAMES = ("Ranks 0 and 1", "self.drop(")
REPAIR = [
    (
        "    model = DistributedDataParallel(Net())\n",
        "    model = DistributedDataParallel(Net())\n    torch.manual_seed(1 + dist.get_rank())\n",
    ),
]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(6, 32), torch.nn.Linear(32, 3)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x):
        hidden = torch.relu(self.up(x))
        return self.down(self.drop(hidden))


def step():
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    everything = torch.arange(16 * 6.0).reshape(16, 6).sin()
    x = everything.chunk(dist.get_world_size())[dist.get_rank()]
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()
    return {"steps": 3}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
