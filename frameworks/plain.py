"""The job in plain PyTorch and one process: what all others are held against."""

import torch
from torch import nn

import job

model = job.torch_model()
optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)
log = job.Log()
for images, labels in job.batches():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.from_numpy(images)), torch.from_numpy(labels))
    loss.backward()
    optimizer.step()
    log.step(loss.item())
log.report()
