"""The same layouts composed of PyTorch's own parts, as its tutorials and torchtitan compose them.

    parallelize_module (DTensor)      heads, MLPs and vocabulary over tp; loss_parallel for logits that stay cut
    fully_shard                       each block over dp_shard, then what is left of the stage
    pipelining.PipelineStage          a stage per rank of pp, performed by ScheduleGPipe or Schedule1F1B

Order and options are torchtitan's (Liang et al. 2410.06511): tensor parallelism, then full sharding, of a stage that
has been cut out already. Each of them wants the one after it to know it, which DTensors do.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

from dtcourse import device
from dtcourse.models import Transformer

AXES = (
    "pp",
    "dp_shard",
    "tp",
)  # ours in the same order, without those that this composition does not have


class Part(nn.Module):
    """A stage: the layers of a Transformer in a range, under the names that they have there.

    layers: the embedding is 0, blocks follow, and the head is the last
    """

    def __init__(self, model: Transformer, layers: range) -> None:
        super().__init__()
        last = len(model.blocks) + 1
        self.token_embedding = model.token_embedding if 0 in layers else None
        self.position_embedding = model.position_embedding if 0 in layers else None
        self.blocks = nn.ModuleDict(
            {str(i): block for i, block in enumerate(model.blocks) if i + 1 in layers}
        )
        self.norm = model.norm if last in layers else None
        self.output = model.output if last in layers else None

    def forward(self, x: Tensor) -> Tensor:
        """Tokens where the first layer is, else the stage before's x_BSD; logits where the last one is."""
        if self.token_embedding is not None:
            places_S = torch.arange(x.shape[-1], device=x.device)
            x = self.token_embedding(x) + self.position_embedding(places_S)
        for block in self.blocks.values():
            x = block(x)
        return x if self.output is None else self.output(self.norm(x))


def cut_tensors(part: Part, mesh: DeviceMesh) -> None:
    """Over tp: a style for each layer."""
    columns, rows = ColwiseParallel, RowwiseParallel
    plan: dict[str, Any] = {
        # Queries, keys and values take one input: so its gradient is summed once, and not for each of the three.
        "blocks.*.attention": PrepareModuleInput(
            input_layouts=(Replicate(), None), desired_input_layouts=(Replicate(), None)
        ),
        **{f"blocks.*.attention.{name}": columns() for name in ("query", "key", "value")},
        "blocks.*.attention.output": rows(),
        "blocks.*.mlp.up": columns(),
        "blocks.*.mlp.down": rows(),
    }
    if part.token_embedding is not None:
        plan["token_embedding"] = rows(input_layouts=Replicate())
    if part.output is not None:
        plan["output"] = columns(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(part, mesh, plan)


def shard(part: Part, mesh: DeviceMesh) -> None:
    """Over dp_shard: a block is a unit, and the rest of the stage another."""
    for block in part.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(part, mesh=mesh)


class TorchTraining:
    """Steps of a model that PyTorch's parts have cut, as HybridTraining has them.

    schedule: ScheduleGPipe or Schedule1F1B, where there are several stages
    ranges:   the layers of each stage
    """

    def __init__(
        self,
        model: Transformer,
        degrees: dict[str, int],
        micro_batches: int,
        ranges: Sequence[range],
        schedule: Any = pipelining.Schedule1F1B,
    ) -> None:
        kind = device.current().type
        shape = tuple(degrees.get(axis, 1) for axis in AXES)
        mesh = init_device_mesh(kind, shape, mesh_dim_names=AXES)
        stage, stages = mesh.get_local_rank("pp"), degrees.get("pp", 1)
        self.micro_batches = micro_batches
        self.module = Part(model, ranges[stage])
        self.cuts_tensors = degrees.get("tp", 1) > 1
        if self.cuts_tensors:
            cut_tensors(self.module, mesh["tp"])
        if degrees.get("dp_shard", 1) > 1:
            shard(self.module, mesh["dp_shard"])
        self.first, self.last = stage == 0, stage == stages - 1
        self.schedule: Any = None
        if stages > 1:
            wrapped = pipelining.PipelineStage(
                self.module, stage, stages, device.current(), group=mesh.get_group("pp")
            )
            self.schedule = schedule(wrapped, micro_batches, loss_fn=token_loss)

    def step(self, tokens_BS: Tensor, targets_BS: Tensor) -> float | None:
        """Forward and backward of this rank's samples; the mean loss of them where the last stage is."""
        with loss_parallel() if self.cuts_tensors else nullcontext():
            losses: list[Tensor] = []
            if self.schedule is not None:
                first = (tokens_BS,) if self.first else ()
                target = targets_BS if self.last else None
                self.schedule.step(*first, target=target, losses=losses, return_outputs=False)
            else:
                for tokens, targets in zip(
                    tokens_BS.chunk(self.micro_batches),
                    targets_BS.chunk(self.micro_batches),
                    strict=True,
                ):
                    losses.append(token_loss(self.module(tokens), targets))
                    (losses[-1] / self.micro_batches).backward()
            if not self.last:
                return None
            return float(torch.stack([whole(loss.detach()) for loss in losses]).mean())


def token_loss(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    """Mean over a micro-batch's tokens."""
    return F.cross_entropy(logits_BSV.flatten(0, 1), targets_BS.flatten())


def whole(x: Tensor) -> Tensor:
    """Of a DTensor all that its ranks have together. A collective."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def gradients_of(part: Part) -> dict[str, Tensor]:
    """Of this stage's parameters, whole. A collective of the stage's ranks."""
    return {
        name: whole(p.grad).clone() for name, p in part.named_parameters() if p.grad is not None
    }
