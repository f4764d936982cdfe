"""FairScale's ZeRO-1: OSS keeps each optimizer state on one rank; DistributedDataParallel averages gradients."""

import torch
import torch.distributed as dist
from fairscale.optim.oss import OSS
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import job


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(job.torch_model())
    optimizer = OSS(params=model.parameters(), optim=torch.optim.SGD, lr=job.LR)
    dataset = job.torch_data()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=job.BATCH // dist.get_world_size(), sampler=sampler)

    log = job.Log()
    for images, labels in loader:
        model.zero_grad()
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
