"""With augmentation, eight GPUs overfit as if there were a fraction of it.

Cause: the usual `seed_everything(seed)` on every rank: numpy draws the same shifts, flips and noise everywhere, so
in a step there is one draw for all ranks.
Found by: the generators' states while samples are prepared: several ranks are in the same one, with other samples.
Repair: after the model is built, seed each rank for itself. Known from nearly every published script's
seed_everything; the workers of a DataLoader have had the same mistake one floor down.
"""

import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANKS = 4
KIND = "silently wrong"
TOOL = "seeds"
NAMES = ("anks 0, 1, 2 and 3", "Images.__getitem__")
REPAIR = [
    (
        "    for epoch in range(2):\n",
        "    seed_everything(42 + dist.get_rank())\n    for epoch in range(2):\n",
    )
]


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Images(Dataset):
    """Each image moved by up to two pixels, mirrored or not, with a little noise."""

    def __init__(self):
        self.images = np.random.default_rng(0).normal(size=(64, 8, 8))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = np.roll(self.images[index], np.random.randint(-2, 3, size=2), axis=(0, 1))
        if np.random.rand() < 0.5:
            image = image[:, ::-1]
        image = image + 0.1 * np.random.randn(*image.shape)
        return torch.from_numpy(image).float(), index % 10


def step():
    seed_everything(42)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = Images()
    sampler = DistributedSampler(dataset, dist.get_world_size(), dist.get_rank())
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"own losses": losses}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
