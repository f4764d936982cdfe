"""PyTorch's tensor parallelism on DTensor: the first layer cut by columns, the second by rows, all images on both."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader

import job


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(job.torch_model(), mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)

    log = job.Log()
    for images, labels in DataLoader(job.torch_data(), batch_size=job.BATCH):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        log.step(loss.item())

    if dist.get_rank() == 0:
        log.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
