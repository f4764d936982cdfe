"""The loss falls far more slowly than on one GPU, and each rank's checkpoint is good for something else.

Cause: each rank seeds itself by its number before it builds the model, so that the replicas start from different
weights; averaged gradients then move them all by the same steps, and they never meet. (DDP would send rank 0's weights
to all; this loop averages by hand.)
Found by: checksums of the parameters: they get one gradient on all ranks and differ.
Repair: one seed for the model, and each rank's own afterwards; or rank 0's weights are broadcast.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

RANKS = 3
KIND = "diverges"
TOOL = "replicas"
NAMES = ("0.weight", "rank")
REPAIR = [
    (
        "    torch.manual_seed(dist.get_rank())\n    model = build()\n",
        "    torch.manual_seed(0)\n    model = build()\n    torch.manual_seed(dist.get_rank())\n",
    ),
]


def build():
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def step():
    torch.manual_seed(dist.get_rank())
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    everything = torch.arange(24 * 6.0).reshape(24, 6).sin()
    x = everything.chunk(dist.get_world_size())[dist.get_rank()]
    losses = []
    for _ in range(4):
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        dist.all_reduce(loss.detach_())
        losses.append(loss.item() / dist.get_world_size())
    return {"losses": losses}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
