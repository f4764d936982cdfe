"""The loss of a sharded model is the same number at every step; its gradients are there, and no error is raised.

Cause: the optimizer was built first, and fully_shard puts new parameters in the place of those that it holds: it
updates weights that no forward reads.
Found by: which parameters have gradients, and which the optimizer has.
Repair: shard first, then build the optimizer. Known from moving a script to FSDP2 (its tutorial says in which
order); the same comes from model.to(device) in old versions, and from any parameter that is replaced.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

RANKS = 2
KIND = "silently wrong"
TOOL = "optimizers"
NAMES = ("0.weight", "SGD")
REPAIR = [
    (
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.5)\n    shard(model)\n",
        "shard(model)\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)\n",
    )
]


def shard(model):
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)


def step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    shard(model)
    data = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(64, 8, generator=data)
    y = (x.sum(1) > 0).long()
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"own losses": losses}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
