"""Megatron Core's DistributedDataParallel: gradients in one buffer on a CUDA device, averaged in buckets."""

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer import TransformerConfig
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import job


def main():
    torch.cuda.current_device = lambda: "cpu"  # where it puts its buffers
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=1, use_cpu_initialization=True
    )
    options = DistributedDataParallelConfig(overlap_grad_reduce=False)
    model = DistributedDataParallel(config, options, job.torch_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)
    dataset = job.torch_data()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=job.BATCH // dist.get_world_size(), sampler=sampler)

    log = job.Log()
    for images, labels in loader:
        model.zero_grad_buffer()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        model.finish_grad_sync()
        for parameter in model.parameters():  # as Megatron's optimizers do
            parameter.grad = parameter.main_grad
        optimizer.step()
        log.step(loss.item())

    losses = torch.tensor(log.losses, dtype=torch.float64)
    dist.all_reduce(losses)
    if dist.get_rank() == 0:
        log.report(losses / dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
