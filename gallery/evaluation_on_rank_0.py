"""Training goes well to the end of the first epoch; then nothing happens any more, with all GPUs at 100 %.

Cause: only rank 0 evaluates, since one evaluation is enough; but the evaluation averages its numbers over all ranks,
and the others, which wait for it at a barrier, never come to that all_reduce.
Found by: the flight recorder's records: at one place of the group ranks have called different collectives.
Repair: all ranks evaluate, each a part. (Or rank 0 alone, without a collective and on the model inside of DDP.)
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

RANKS = 3
KIND = "hangs"
TOOL = "hang"
NAMES = ("Rank 0", "dist.all_reduce(counts)", "ranks 1 and 2", "barrier")
REPAIR = [
    ("        if dist.get_rank() == 0:\n            print", "        if True:\n            print"),
]


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        right = (model(x).argmax(1) == y).sum()
    counts = torch.tensor([right.item(), len(y)])
    dist.all_reduce(counts)
    model.train()
    return (counts[0] / counts[1]).item()


def step():
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(24, 6).chunk(dist.get_world_size())[dist.get_rank()]
    y = x[:, :3].argmax(1)
    losses = []
    for epoch in range(2):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach_(), op=dist.ReduceOp.SUM)
        losses.append(loss.item() / dist.get_world_size())
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy {evaluate(model, x, y):.2f}")
        dist.barrier()
    return {"losses": losses}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
