"""hivemind: peers find each other in a distributed hash table, and average what they have put into an averager."""

import multiprocessing
import os

import hivemind
import torch
from torch import nn

import job

LOCAL = ["/ip4/127.0.0.1/tcp/0"]


def main(rank, world_size, _address):
    multiprocessing.set_start_method("fork", force=True)  # an averager is a process of its own
    dht = hivemind.DHT(
        initial_peers=os.environ["INITIAL_PEERS"].split(), host_maddrs=LOCAL, start=True
    )
    model = job.torch_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)
    averager = hivemind.DecentralizedAverager(
        [torch.zeros_like(parameter) for parameter in model.parameters()],
        dht,
        prefix="job",
        target_group_size=world_size,
        min_group_size=world_size,
        min_matchmaking_time=1.0,
        request_timeout=0.5,
        start=True,
    )

    log = job.Log()
    for images, labels in job.batches(rank, world_size):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(
            model(torch.from_numpy(images)), torch.from_numpy(labels)
        )
        loss.backward()
        with averager.get_tensors() as tensors:
            for tensor, parameter in zip(tensors, model.parameters(), strict=True):
                tensor.copy_(parameter.grad)
        gathered = averager.step(gather=loss.item(), timeout=60)
        with averager.get_tensors() as tensors:
            for tensor, parameter in zip(tensors, model.parameters(), strict=True):
                parameter.grad.copy_(tensor)
        optimizer.step()
        log.step(sum(gathered.values()) / len(gathered))

    if rank == 0:
        log.report()
    averager.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    first = hivemind.DHT(host_maddrs=LOCAL, start=True)
    os.environ["INITIAL_PEERS"] = " ".join(map(str, first.get_visible_maddrs()))
    job.start(main)
    first.shutdown()
