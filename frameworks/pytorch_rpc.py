"""A parameter server in PyTorch's RPC: two workers send gradients to a third process, which answers with the model."""

import os
import threading

import torch
from torch import nn
from torch.distributed import rpc

import job

WORKERS = 2


class ParameterServer:
    """Waits for the gradients of all workers, makes a step with their mean, and only then answers each of them."""

    def __init__(self):
        self.model = job.torch_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=job.LR)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.lock = threading.Lock()
        self.arrived = 0
        self.updated = torch.futures.Future()

    def get_model(self):
        return self.model

    @staticmethod
    @rpc.functions.async_execution
    def update_and_fetch(server, gradients):
        self = server.local_value()
        with self.lock:
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter.grad += gradient / WORKERS
            self.arrived += 1
            updated = self.updated
            if self.arrived == WORKERS:
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=False)
                self.arrived, self.updated = 0, torch.futures.Future()
                updated.set_result(self.model)
        return updated


def train(server, worker):
    """A worker's steps; its losses, and its log."""
    model = server.rpc_sync().get_model()
    log = job.Log()
    for images, labels in job.batches(worker, WORKERS):
        loss = nn.functional.cross_entropy(
            model(torch.from_numpy(images)), torch.from_numpy(labels)
        )
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        model = rpc.rpc_sync(
            server.owner(), ParameterServer.update_and_fetch, args=(server, gradients)
        )
        log.step(loss.item())
    return log


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc("server" if rank == WORKERS else f"worker{rank}", rank=rank, world_size=world_size)
    if rank == WORKERS:
        server = rpc.RRef(ParameterServer())
        calls = [rpc.rpc_async(f"worker{i}", train, args=(server, i)) for i in range(WORKERS)]
        logs = torch.futures.wait_all(calls)
        losses = torch.tensor([log.losses for log in logs], dtype=torch.float64)
        logs[0].report(losses.mean(0))
    rpc.shutdown()


if __name__ == "__main__":
    main()
