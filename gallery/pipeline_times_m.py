"""With more micro-batches the pipeline's training becomes unstable, and a smaller learning rate "repairs" it.

Cause: each micro-batch's loss is a mean over its own samples, and the gradients of all m are summed up: they are m
times those of the whole batch. Adam hides it; clipping, weight decay and SGD do not.
Found by: the gradients against one process on the whole batch: the right ones, m times too large.
Repair: each micro-batch's loss is divided by m.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

RANKS = 2
KIND = "silently wrong"
TOOL = "gradients"
NAMES = ("rank 0", "0.weight", "4 times too large")
REPAIR = [
    ("F.mse_loss(output, y)\n", "F.mse_loss(output, y) / MICRO_BATCHES\n"),
]
MICRO_BATCHES = 4


def whole_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 3))


def batch():
    torch.manual_seed(1)
    return torch.randn(16, 6), torch.randn(16, 3)


def first_stage(stage, inputs):
    outputs = []
    for x in inputs:
        outputs.append(stage(x))
        dist.send(outputs[-1].detach(), 1)
    for output in outputs:
        gradient = torch.empty_like(output)
        dist.recv(gradient, 1)
        output.backward(gradient)


def last_stage(stage, targets):
    received = []
    for y in targets:
        received.append(torch.empty(len(y), 12))
        dist.recv(received[-1], 0)
    for x, y in zip(received, targets, strict=True):
        output = stage(x.requires_grad_())
        loss = F.mse_loss(output, y)
        loss.backward()
        dist.send(x.grad, 0)


def step():
    model, (x, y) = whole_model(), batch()
    if dist.get_rank() == 0:
        first_stage(model[:2], x.chunk(MICRO_BATCHES))
    else:
        last_stage(model[2:], y.chunk(MICRO_BATCHES))
    mine = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"gradients": mine}


def reference():
    model, (x, y) = whole_model(), batch()
    F.mse_loss(model(x), y).backward()
    return {"gradients": {name: p.grad for name, p in model.named_parameters()}}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
