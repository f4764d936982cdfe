"""Now and then a checkpoint cannot be read: "PytorchStreamReader failed", of a job that had ended well.

Cause: every rank saves to the same path, at the same time, and each begins by emptying the file.
Found by: which ranks open which file to write.
Repair: rank 0 alone writes, and the others wait until it has. Known from every training script that was written for
one GPU first; on a shared file system of a cluster it costs the job's checkpoints.
"""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 4
KIND = "silently wrong"
TOOL = "files"
NAMES = ("Ranks 0, 1, 2 and 3", "checkpoint.pt")
REPAIR = [
    (
        "torch.save(content, path)",
        "if dist.get_rank() == 0:\n        torch.save(content, path)\n    dist.barrier()",
    )
]


def save(content, path):
    torch.save(content, path)


def step():
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    path = f"{folder[0]}/checkpoint.pt"

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(dist.get_rank())
    for epoch in range(3):
        x, y = torch.randn(32, 64, generator=data), torch.randint(8, (32,), generator=data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        save({"model": model.module.state_dict(), "epoch": epoch}, path)
    return {}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
