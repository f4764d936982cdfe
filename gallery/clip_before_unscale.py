"""With 16-bit numbers and a GradScaler the model learns nothing; without clipping, or with 32 bits, it does.

Cause: the gradients are still 65,536 times too large when they are clipped, so they are cut down to the norm 1 and
then divided by 65,536.
Found by: the gradients that the optimizer used, against those of one process without a scale.
Repair: scaler.unscale_(optimizer) before the clipping. Known from PyTorch's own page on automatic mixed precision,
which warns of it, and from many scripts to which one of the two was added later.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
KIND = "silently wrong"
TOOL = "gradients"
NAMES = ("0.weight", "too small")
REPAIR = [
    (
        "    scaler.scale(loss).backward()\n",
        "    scaler.scale(loss).backward()\n    scaler.unscale_(optimizer)\n",
    )
]


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def batch(rank):
    data = torch.Generator().manual_seed(1 + rank)
    x = torch.randn(32, 8, generator=data)
    return x, 10 * x.sum(1, keepdim=True)


def step():
    net = build()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    x, y = batch(dist.get_rank())
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return {"gradients": {name: p.grad for name, p in net.named_parameters()}}


def reference():
    model = build()
    xs, ys = zip(*(batch(rank) for rank in range(RANKS)), strict=True)
    nn.functional.mse_loss(model(torch.cat(xs)), torch.cat(ys)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return {"gradients": {name: p.grad for name, p in model.named_parameters()}}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
