"""Ray's actors as a synchronous parameter server: what a worker returns is passed on to the server as a reference."""

import numpy as np
import ray
import torch
from torch import nn

import job

WORKERS = 2


@ray.remote
class ParameterServer:
    def __init__(self):
        self.model = job.torch_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=job.LR)

    def get_weights(self):
        return self.model.state_dict()

    def apply_gradients(self, *gradients):
        for parameter, *parts in zip(self.model.parameters(), *gradients, strict=True):
            parameter.grad = torch.stack(parts).mean(0)
        self.optimizer.step()
        return self.model.state_dict()


@ray.remote
class Worker:
    def __init__(self, rank):
        self.model = job.torch_model()
        self.batches = job.batches(rank, WORKERS)

    @ray.method(num_returns=2)
    def compute_gradients(self, weights):
        self.model.load_state_dict(weights)
        images, labels = (torch.from_numpy(each) for each in next(self.batches))
        loss = nn.functional.cross_entropy(self.model(images), labels)
        return torch.autograd.grad(loss, list(self.model.parameters())), loss.item()


def main():
    ray.init()
    server = ParameterServer.remote()
    workers = [Worker.remote(rank) for rank in range(WORKERS)]

    log = job.Log()
    weights = server.get_weights.remote()
    for _ in range(job.STEPS):
        found = [worker.compute_gradients.remote(weights) for worker in workers]
        weights = server.apply_gradients.remote(*(gradients for gradients, _ in found))
        log.step(np.mean(ray.get([loss for _, loss in found])))
    log.report()


if __name__ == "__main__":
    main()
