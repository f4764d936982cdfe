"""FairScale's FullyShardedDataParallel, of which PyTorch's is the heir. It wants CUDA streams, and gets empty ones."""

import contextlib

import torch
import torch.distributed as dist
from fairscale.nn.data_parallel import FullyShardedDataParallel
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import job


class NoStream:
    def wait_stream(self, _other):
        pass

    def synchronize(self):
        pass


def without_cuda():
    """What FairScale asks of CUDA whatever the device: on a CPU everything happens in order, so it is nothing."""
    stream, names = NoStream(), ("fp32_to_fp16", "all_gather", "post_backward")
    torch.cuda.current_stream = lambda: stream
    torch.cuda.stream = lambda _stream: contextlib.nullcontext()
    torch.cuda.synchronize = lambda: None
    torch.Tensor.record_stream = lambda _tensor, _stream: None
    set_up = FullyShardedDataParallel._setup_streams

    def set_up_with_empty_ones(self):
        set_up(self)
        self._streams.update(dict.fromkeys(names, stream))

    FullyShardedDataParallel._setup_streams = set_up_with_empty_ones


def main():
    without_cuda()
    dist.init_process_group("gloo")
    model = FullyShardedDataParallel(job.torch_model(), compute_device=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)
    dataset = job.torch_data()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=job.BATCH // dist.get_world_size(), sampler=sampler)

    log = job.Log()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        log.step(loss.item())

    losses = torch.tensor(log.losses, dtype=torch.float64)
    dist.all_reduce(losses)
    if dist.get_rank() == 0:
        log.report(losses / dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
