"""Megatron Core's tensor parallelism: a ColumnParallelLinear, then a RowParallelLinear; all images on both ranks."""

import torch
import torch.distributed as dist
from megatron.core import ModelParallelConfig, parallel_state
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from torch import nn
from torch.utils.data import DataLoader

import job


class ParallelMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        n_in, n_hidden, n_out = job.SIZES
        options = {"config": config, "init_method": nn.init.zeros_, "skip_bias_add": False}
        self.first = ColumnParallelLinear(n_in, n_hidden, bias=True, gather_output=False, **options)
        self.second = RowParallelLinear(
            n_hidden, n_out, bias=True, input_is_parallel=True, **options
        )

    def forward(self, images):
        hidden, _ = self.first(images)
        logits, _ = self.second(nn.functional.relu(hidden))
        return logits

    @torch.no_grad()
    def load_job(self):
        """This rank's rows of the first layer's weight, and its columns of the second's."""
        rank = parallel_state.get_tensor_model_parallel_rank()
        world_size = parallel_state.get_tensor_model_parallel_world_size()
        whole = {name: torch.from_numpy(array) for name, array in job.weights().items()}
        self.first.weight.copy_(whole["0.weight"].chunk(world_size, dim=0)[rank])
        self.first.bias.copy_(whole["0.bias"].chunk(world_size)[rank])
        self.second.weight.copy_(whole["2.weight"].chunk(world_size, dim=1)[rank])
        self.second.bias.copy_(whole["2.bias"])


def main():
    dist.init_process_group("gloo")
    world_size = dist.get_world_size()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=world_size)
    config = ModelParallelConfig(
        tensor_model_parallel_size=world_size,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
    )
    model = ParallelMLP(config)
    model.load_job()
    optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)

    log = job.Log()
    for images, labels in DataLoader(job.torch_data(), batch_size=job.BATCH):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        log.step(loss.item())

    if dist.get_rank() == 0:
        log.report()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
