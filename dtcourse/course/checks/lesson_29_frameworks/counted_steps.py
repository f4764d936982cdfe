"""One step of an MLP under each of PyTorch's wrappers, over the course's ring: the bytes that each rank sends.

widths: of the layers, the first is that of the samples; a layer is a matrix without bias, with tanh between.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

Job = tuple[str, tuple[int, ...], int, int]  # wrapper, widths, samples of the whole batch, ranks
WRAPPERS = ("ddp", "fully_shard", "fully_shard, not resharded", "tensor", "pipeline")


def model_of(widths: tuple[int, ...]) -> nn.Sequential:
    """The same on all ranks."""
    torch.manual_seed(0)
    layers = [nn.Linear(n_in, n_out, bias=False) for n_in, n_out in pairwise(widths)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))


def wrapped(wrapper: str, widths: tuple[int, ...], bucket_view: bool = False) -> Any:
    """The model as each of WRAPPERS but the pipeline has it. bucket_view: DDP's gradient_as_bucket_view"""
    model = model_of(widths)
    if wrapper == "ddp":
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=bucket_view)
    return _cut(model) if wrapper == "tensor" else _sharded(model, "not" not in wrapper)


def _sharded(model: Any, reshard: bool) -> Any:
    """Each layer is a unit, and so is the model."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model[::2]:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    return fully_shard(model, mesh=mesh, reshard_after_forward=reshard)


def _cut(model: Any) -> nn.Module:
    """Columns, rows, columns, rows."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan: dict[str, Any] = {
        str(i): ColwiseParallel() if i % 4 == 0 else RowwiseParallel()
        for i in range(0, len(model), 2)
    }
    return parallelize_module(model, mesh, plan)


def _pipeline_step(model: Any, x: Tensor) -> None:
    """A layer per stage, two micro-batches."""
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, last = dist.get_rank(), dist.get_world_size() - 1
    part = model[2 * rank : 2 * rank + 2]
    stage = PipelineStage(part, rank, last + 1, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda y, _: y.square().mean())
    for _ in range(2):  # the first one tells the stages what shapes come
        if rank == 0:
            schedule.step(x)
        elif rank == last:
            schedule.step(target=torch.zeros(len(x), part[0].out_features))
        else:
            schedule.step()


def sent_by_this_rank(jobs: list[Job]) -> list[int]:
    """On each rank: the bytes of one step, after another one that is not counted."""
    import torch.distributed as dist

    from dtcourse.collectives import traffic

    found = []
    for wrapper, widths, samples, ranks in jobs:
        torch.manual_seed(1)
        x = torch.randn(samples, widths[0])
        if wrapper == "pipeline":
            # Both steps are alike but for what is told of shapes, a few numbers.
            with traffic.counting() as counted:
                _pipeline_step(model_of(widths), x)
            found.append(counted.bytes_sent(operation="send") // 2)
            continue
        model = wrapped(wrapper, widths)
        mine = x if wrapper == "tensor" else x.chunk(ranks)[dist.get_rank()]
        model(mine).square().mean().backward()
        with traffic.counting() as counted:
            model(mine).square().mean().backward()
        found.append(counted.bytes_sent())
    return found
