"""Trains a small convolutional net on handwritten digits, data parallel.

torchrun --standalone --nproc-per-node 2 lessons/scripts/06b_data_parallel.py
"""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.nn  # DDP would import it later and then keep the group, and its threads, to the end
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from dtcourse import data, device
from dtcourse.data_parallel import SyncBatchNorm  # PyTorch's own runs on GPUs only
from dtcourse.models import ConvNet


def main(arguments=None) -> None:
    """Reads its arguments, trains, evaluates after each epoch, saves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--save", help="where to write the weights")
    parser.add_argument("--backend", help="gloo, nccl; default: what fits the device")
    args = parser.parse_args(arguments)
    dist.init_process_group(args.backend)  # 1: who are the others?
    rank, ranks = dist.get_rank(), dist.get_world_size()
    here = device.current()  # 2: this rank's own

    train, test = data.digits("train"), data.digits("test")
    sampler = DistributedSampler(train, seed=0, drop_last=True)  # 3: its share of the images
    loader = DataLoader(train, args.batch // ranks, sampler=sampler, drop_last=True)

    model = SyncBatchNorm.convert(ConvNet((8, 16)).to(here))  # 4: statistics of the whole batch
    model = DistributedDataParallel(model)  # 5: the mean gradient
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    for epoch in range(args.epochs):
        model.train()
        sampler.set_epoch(epoch)  # 6: another order in each epoch, the same on all ranks
        total = torch.zeros(1, device=here)
        for images, labels in loader:
            logits = model(images.to(here))
            loss = torch.nn.functional.cross_entropy(logits, labels.to(here))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()

        model.eval()
        right = torch.zeros(1, device=here)
        mine = torch.utils.data.Subset(test, range(rank, len(test), ranks))
        with torch.no_grad():
            for images, labels in DataLoader(mine, args.batch):
                logits = model.module(images.to(here))  # 7: no collective where loops may differ
                right += (logits.argmax(1) == labels.to(here)).sum()
        dist.all_reduce(total)  # 8: numbers of all ranks ...
        dist.all_reduce(right)
        total /= ranks
        if rank == 0:  # ... said once
            print(f"epoch {epoch}: loss {total.item() / len(loader):.4f}, {right.item():.0f} right")

    if args.save and rank == 0:  # 9: written once, and without DDP's prefix
        torch.save(model.module.state_dict(), args.save)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # after main: its model holds on to the group
