"""PyTorch's pipelining: the first layer on rank 0, the second on rank 1, and four micro-batches by GPipe's schedule."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline
from torch.utils.data import DataLoader

import job

MICRO_BATCHES = 4


def main():
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    example = torch.zeros(job.BATCH // MICRO_BATCHES, job.SIZES[0])
    pipe = pipeline(job.torch_model(), (example,), split_spec={"2": SplitPoint.BEGINNING})
    stage = pipe.build_stage(rank, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=job.LR)

    log = job.Log()
    for images, labels in DataLoader(job.torch_data(), batch_size=job.BATCH):
        optimizer.zero_grad()
        losses = []
        if rank == 0:
            schedule.step(images)
        else:
            schedule.step(target=labels, losses=losses)
        optimizer.step()
        if rank == last:
            log.step(torch.stack(losses).mean().item())

    if rank == last:
        log.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
