"""The job in FairScale's ShardedDataParallel; the argument says who clears the gradients, "model" or "optimizer".
Prints the losses.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim.oss import OSS
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "frameworks"))
import job

dist.init_process_group("gloo")
model = job.torch_model()
optimizer = OSS(params=model.parameters(), optim=torch.optim.SGD, lr=job.LR)
model = ShardedDataParallel(model, optimizer)
clears = {"model": model, "optimizer": optimizer}[sys.argv[1]]
losses = []
for images, labels in job.batches(dist.get_rank(), dist.get_world_size()):
    clears.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.from_numpy(images)), torch.from_numpy(labels))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
mean = torch.tensor(losses, dtype=torch.float64)
dist.all_reduce(mean)
if dist.get_rank() == 0:
    print("FOUND", json.dumps((mean / dist.get_world_size()).tolist()), flush=True)
dist.destroy_process_group()
