"""Lightning Fabric: the loop stays one's own, and `setup` wraps what it uses."""

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader

import job


def main():
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    model = job.torch_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)
    model, optimizer = fabric.setup(model, optimizer)
    loader = DataLoader(job.torch_data(), batch_size=job.BATCH // fabric.world_size)
    loader = fabric.setup_dataloaders(loader)

    log = job.Log()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        fabric.backward(loss)
        optimizer.step()
        log.step(loss.item())

    losses = fabric.all_reduce(torch.tensor(log.losses, dtype=torch.float64), reduce_op="mean")
    if fabric.is_global_zero:
        log.report(losses)


if __name__ == "__main__":
    main()
