"""The accuracy that is reported changes with the number of GPUs, in the third digit, for the same checkpoint.

Cause: DistributedSampler makes the ranks' parts equally long by giving some samples out twice, which no mean over
the ranks knows.
Found by: the samples that the ranks have really read.
Repair: for evaluation cut without padding; ranks may differ by one sample, so count what each has had. Known from
the ImageNet examples of most libraries; torch's says so in a comment, and evaluates the rest by itself.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 4
KIND = "silently wrong"
TOOL = "data order"
NAMES = ("2 samples (0, 1)", "ranks 0 and 2")
REPAIR = [
    (
        "sampler = DistributedSampler(dataset, shuffle=False)",
        "sampler = range(dist.get_rank(), len(dataset), dist.get_world_size())",
    )
]

SAMPLES = 50


def test_set():
    data = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 8, generator=data)
    return TensorDataset(torch.arange(SAMPLES), x, (x.sum(1) > 0).long())


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    seen, counts = [], torch.zeros(2)
    for index, x, y in loader:
        correct = model(x).argmax(1) == y
        counts += torch.tensor([correct.sum(), len(y)])
        seen += index.tolist()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item(), seen


def step():
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    dataset = test_set()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    accuracy, seen = evaluate(model, loader)
    return {"accuracy": accuracy, "samples": seen, "total": SAMPLES}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
