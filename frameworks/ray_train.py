"""Ray Train: a TorchTrainer starts the workers as actors and forms their group; `prepare_*` wraps model and loader."""

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn
from torch.utils.data import DataLoader

import job


def train():
    context = ray.train.get_context()
    model = ray.train.torch.prepare_model(job.torch_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)
    loader = DataLoader(job.torch_data(), batch_size=job.BATCH // context.get_world_size())
    loader = ray.train.torch.prepare_data_loader(loader)

    log = job.Log()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        log.step(loss.item())

    losses = torch.tensor(log.losses, dtype=torch.float64)
    dist.all_reduce(losses)
    if context.get_world_rank() == 0:
        log.report(losses / context.get_world_size())


def main():
    trainer = TorchTrainer(
        train,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
