"""A training that goes on from a checkpoint begins with the loss of an untrained model; no error anywhere.

Cause: the checkpoint was saved from the wrapper, so each key begins with "module.", and strict=False takes what
fits: nothing.
Found by: what load_state_dict was given, and what it took.
Repair: save the model inside the wrapper; and strict=True, which would have said so. Known from every forum:
strict=False is the usual advice against the error message "Missing key(s) in state_dict".
"""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
KIND = "silently wrong"
TOOL = "loads"
NAMES = ("0.weight", "module.0.weight")
REPAIR = [("torch.save(model.state_dict(), path)", "torch.save(model.module.state_dict(), path)")]


def build():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def train(model, steps):
    data = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(64, 8, generator=data)
    y = (x.sum(1) > 0).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def step():
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    path = f"{folder[0]}/checkpoint.pt"

    torch.manual_seed(0)
    model = DistributedDataParallel(build())
    losses = train(model, 10)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()

    torch.manual_seed(1)  # the job was started anew
    restored = build()
    restored.load_state_dict(torch.load(path, weights_only=True), strict=False)
    losses += train(DistributedDataParallel(restored), 3)
    return {"own losses": losses}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
