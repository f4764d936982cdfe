"""Hugging Face Accelerate: `prepare` wraps model, optimizer and loader for whatever launched the processes."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

import job


def main():
    accelerator = Accelerator(cpu=True)
    model = job.torch_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)
    # Each process takes every second of the loader's batches: they are parts of the job's batch.
    loader = DataLoader(job.torch_data(), batch_size=job.BATCH // accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    log = job.Log()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
        log.step(loss.item())

    losses = accelerator.reduce(torch.tensor(log.losses, dtype=torch.float64), reduction="mean")
    if accelerator.is_main_process:
        assert accelerator.num_processes == 2, (
            "accelerate launch --cpu starts one, and says nothing"
        )
        log.report(losses)
    accelerator.end_training()


if __name__ == "__main__":
    main()
