"""FairScale's ZeRO-2: ShardedDataParallel sends each gradient only to the rank whose OSS has its optimizer state."""

import torch
import torch.distributed as dist
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim.oss import OSS
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import job


def main():
    dist.init_process_group("gloo")
    model = job.torch_model()
    optimizer = OSS(params=model.parameters(), optim=torch.optim.SGD, lr=job.LR)
    model = ShardedDataParallel(model, optimizer)
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
