"""After a preemption the loss jumps, though the checkpoint was written and loads without an error.

Cause: the cluster's signal comes when it likes, and the handler saves at once: in the middle of optimizer.step(),
with some parameters of the new step and some of the old.
Found by: who writes files, from which lines, and whether an optimizer's step was under way.
Repair: the handler notes that it was called, and the loop saves after the step. Known from the usual
`signal.signal(SIGUSR2, save_checkpoint)` for Slurm's --signal and for spot instances.
"""

import os
import signal
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
KIND = "silently wrong"
TOOL = "files"
NAMES = ("rank 0", "preempted.pt", "SGD.step()")
REPAIR = [
    ("asked.append(number)\n        save()\n", "asked.append(number)\n"),
    (
        "        optimizer.step()\n",
        "        optimizer.step()\n        if asked:\n            save()\n",
    ),
]


def slurm(weights):
    """What the cluster does: its signal comes when some of the weights are updated and some are not."""
    while weights[0]._version == weights[len(weights) // 2]._version:
        time.sleep(1e-5)
    os.kill(os.getpid(), signal.SIGUSR2)


def step():
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    path = tempfile.mkdtemp() + "/preempted.pt"
    asked = []

    def save():
        torch.save(net.state_dict(), path)

    def handler(number, frame):
        asked.append(number)
        save()

    signal.signal(signal.SIGUSR2, handler)
    if rank == 0:
        weights = list(net.parameters())
        threading.Thread(target=slurm, args=(weights,), daemon=True).start()
    x = torch.randn(8, 256, generator=torch.Generator().manual_seed(rank))
    for _ in range(1000):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        leaves = torch.tensor(len(asked))
        dist.all_reduce(leaves)
        if leaves:
            break
    if rank > 0:
        return {}
    saved, now = torch.load(path, weights_only=True), net.state_dict()
    return {"same as saved": sum(torch.equal(saved[name], now[name]) for name in now) / len(now)}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
