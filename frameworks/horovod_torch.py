"""Horovod: an optimizer that averages gradients while backward runs, and a broadcast of the start."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import job


def main():
    hvd.init()
    model = job.torch_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    dataset = job.torch_data()
    sampler = DistributedSampler(dataset, hvd.size(), hvd.rank(), shuffle=False)
    loader = DataLoader(dataset, batch_size=job.BATCH // hvd.size(), sampler=sampler)

    log = job.Log()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        log.step(loss.item())

    losses = hvd.allreduce(torch.tensor(log.losses, dtype=torch.float64))
    if hvd.rank() == 0:
        log.report(losses)


if __name__ == "__main__":
    main()
