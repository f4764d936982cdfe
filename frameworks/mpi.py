"""mpi4py: PyTorch for the gradients, and MPI's Allreduce to average them, as one did before frameworks."""

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

import job


def main():
    world = MPI.COMM_WORLD
    rank, world_size = world.Get_rank(), world.Get_size()
    model = job.torch_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)

    log = job.Log()
    for images, labels in job.batches(rank, world_size):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(
            model(torch.from_numpy(images)), torch.from_numpy(labels)
        )
        loss.backward()
        for parameter in model.parameters():
            world.Allreduce(MPI.IN_PLACE, parameter.grad.numpy(), op=MPI.SUM)
            parameter.grad /= world_size
        optimizer.step()
        log.step(loss.item())

    losses = np.array(log.losses)
    world.Allreduce(MPI.IN_PLACE, losses, op=MPI.SUM)
    if rank == 0:
        log.report(losses / world_size)


if __name__ == "__main__":
    main()
