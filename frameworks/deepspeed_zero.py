"""DeepSpeed: an engine made from a model and a dict does backward and step. The command's argument is ZeRO's stage."""

import sys

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import job


def main(stage, offload):
    deepspeed.init_distributed(dist_backend="gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = job.torch_model()
    config = {
        "train_batch_size": job.BATCH,
        "train_micro_batch_size_per_gpu": job.BATCH // world_size,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if offload:
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=job.LR), config=config
    )
    dataset = job.torch_data()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=job.BATCH // world_size, sampler=sampler)

    log = job.Log()
    for images, labels in loader:
        loss = nn.functional.cross_entropy(engine(images), labels)
        engine.backward(loss)
        engine.step()
        log.step(loss.item())

    losses = torch.tensor(log.losses, dtype=torch.float64)
    dist.all_reduce(losses)
    if rank == 0:
        log.report(losses / world_size)
    engine.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), offload="offload" in sys.argv)
