"""The training loss falls in steps of an epoch and repeats itself within; validation is a little worse than it was.

Cause: DistributedSampler shuffles by its seed and the epoch that it was told last. Nobody tells it: each epoch has the
order, and the batches, of the first.
Found by: the samples that each rank's loader reads, epoch by epoch.
Repair: sampler.set_epoch(epoch) before each epoch.
"""

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
KIND = "silently wrong"
TOOL = "data order"
NAMES = ("epoch 1", "set_epoch")
REPAIR = [
    (
        "        for x, y in loader:\n",
        "        sampler.set_epoch(epoch)\n        for x, y in loader:\n",
    ),
]


def step():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(24, 6), torch.randint(3, (24,)))
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    means = []
    for epoch in range(3):
        total = 0.0
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        means.append(total / len(loader))
        print(f"epoch {epoch}: {means[-1]:.3f}")
    return {"means": means}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
