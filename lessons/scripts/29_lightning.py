"""The job in Lightning Fabric's ModelParallelStrategy, with the optimizer made "before" or "after" the model is set up:
the argument says which. Prints the losses.
"""

import json
import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "frameworks"))
import job


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard each layer, and then the whole."""
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["data_parallel"])
    return fully_shard(model, mesh=mesh["data_parallel"])


def main(when: str) -> None:
    """Train."""
    strategy = ModelParallelStrategy(parallelize, data_parallel_size=2, tensor_parallel_size=1)
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    model = job.torch_model()
    if when == "before":
        optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)
    model = fabric.setup_module(model)
    if when == "after":
        optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)
    optimizer = fabric.setup_optimizers(optimizer)
    losses = []
    for images, labels in job.batches(fabric.global_rank, fabric.world_size):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(
            model(torch.from_numpy(images)), torch.from_numpy(labels)
        )
        fabric.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    mean = fabric.all_reduce(torch.tensor(losses, dtype=torch.float64), reduce_op="mean")
    if fabric.is_global_zero:
        print("FOUND", json.dumps(mean.tolist()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
