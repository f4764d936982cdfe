"""This course's DistributedDataParallel (lessons 06 and 06b): gradients are averaged while backward runs."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import job
from dtcourse.data_parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(job.torch_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)
    dataset = job.torch_data()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=job.BATCH // dist.get_world_size(), sampler=sampler)

    log = job.Log()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        log.step(loss.item())

    losses = torch.tensor(log.losses, dtype=torch.float64)
    dist.all_reduce(losses)
    if dist.get_rank() == 0:
        log.report(losses / dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
