"""Megatron Core's pipeline schedule: the first layer on rank 0, the second on rank 1, four micro-batches by 1F1B."""

from functools import partial

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import MegatronModule, TransformerConfig
from torch import nn
from torch.utils.data import DataLoader

import job

MICRO_BATCHES = 4


def without_cuda():
    """The schedule receives on a CUDA device and counts tokens there: here that is the CPU."""
    zeros = torch.zeros
    torch.cuda.current_device = lambda: "cpu"
    torch.zeros = lambda *size, device=None, **options: zeros(*size, **options)


class Stage(MegatronModule):
    """This rank's layers."""

    model_type = ModelType.encoder_or_decoder

    def __init__(self, config):
        super().__init__(config)
        layers = job.torch_model()
        self.first = parallel_state.is_pipeline_first_stage()
        self.layers = layers[:2] if self.first else layers[2:]

    def set_input_tensor(self, input_tensor):
        """What the stage before has sent: called by the schedule, before each forward."""
        self.input_tensor = input_tensor[0]

    def forward(self, images):
        return self.layers(images if self.first else self.input_tensor)


def loss_func(labels, logits):
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels)
    return loss, {"loss": loss.item()}


def forward_step(batches, model):
    images, labels = next(batches)
    # What stages send each other has three dimensions: a sequence's length, which is 1 here, batch, hidden.
    return model(images[None]), partial(loss_func, labels)


def main():
    without_cuda()
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=dist.get_world_size())
    config = TransformerConfig(
        num_layers=2,
        hidden_size=job.SIZES[1],
        num_attention_heads=1,
        pipeline_model_parallel_size=dist.get_world_size(),
        pipeline_dtype=torch.float32,
        batch_p2p_sync=False,  # no wait for the CUDA device after each message
        use_cpu_initialization=True,
    )
    model = Stage(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)
    forward_backward = get_forward_backward_func()
    micro_batch_size = job.BATCH // MICRO_BATCHES
    batches = iter(DataLoader(job.torch_data(), batch_size=micro_batch_size))

    log = job.Log()
    for _ in range(job.STEPS):
        optimizer.zero_grad()
        found = forward_backward(
            forward_step_func=forward_step,
            data_iterator=batches,
            model=model,
            num_microbatches=MICRO_BATCHES,
            seq_length=1,
            micro_batch_size=micro_batch_size,
        )
        optimizer.step()
        if parallel_state.is_pipeline_last_stage():
            log.step(sum(each["loss"] for each in found) / MICRO_BATCHES)

    if parallel_state.is_pipeline_last_stage():
        log.report()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
