"""Validation and training losses are a little off from one GPU's, and nobody can say since when.

Cause: the ranks have batches of unequal size (texts of unequal length), each takes the mean over its own, and the
gradients are averaged over the ranks: a token in a short batch counts more than one in a long batch.
Found by: the gradients, against those of one process on the whole batch: off, and by no common factor.
Repair: the sum of a rank's losses, divided by all ranks' tokens, times the ranks over which DDP takes the mean. With
micro-batches in the place of ranks it was in the gradient accumulation of transformers (pull request 34191).
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

RANKS = 3
KIND = "silently wrong"
TOOL = "gradients"
NAMES = ("rank 0", "2.bias")
REPAIR = [
    (
        "    loss = F.cross_entropy(model(x), y)\n",
        "    tokens = torch.tensor(float(len(y)))\n"
        "    dist.all_reduce(tokens)\n"
        '    loss = F.cross_entropy(model(x), y, reduction="sum") / tokens * dist.get_world_size()\n',
    )
]
LENGTHS = (3, 30, 12)


def whole_batch():
    torch.manual_seed(1)
    return torch.randn(sum(LENGTHS), 8), torch.randint(5, (sum(LENGTHS),))


def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 5))


def step():
    net = build()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (part.split(LENGTHS)[dist.get_rank()] for part in whole_batch())
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in net.named_parameters()}
    optimizer.step()
    return {"gradients": gradients}


def reference():
    net = build()
    x, y = whole_batch()
    F.cross_entropy(net(x), y).backward()
    return {"gradients": {name: p.grad for name, p in net.named_parameters()}}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
