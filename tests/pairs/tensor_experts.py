"""Tensor parallelism and experts over one model, each over an axis of its own, and other techniques over both."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dtcourse import expert_parallel as ep
from dtcourse import sharding
from dtcourse import tensor_parallel as tp
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.parameters.clipping import clip_grad_norm
from dtcourse.parameters.whole import full_gradients, full_state_dict
from tests.pairs.layouts import MAX_NORM, NORMS, SGD, Steps, batch, build, sgd

# 6 heads, experts, and numbers in each expert: 2 and 3 ranks divide them. Tied, with biases.
GELU = TransformerConfig(
    vocab=31, n_layers=2, d_model=12, n_heads=6, max_length=8, d_ff=6, experts=6
)
# A third matrix in each expert, and an expert that all tokens go through.
SWIGLU = TransformerConfig(
    vocab=30, n_layers=1, d_model=12, n_heads=6, max_length=8, d_ff=6, experts=6, shared_experts=1, tied=False,
    bias=False, norm="rms", mlp="swiglu",
)  # fmt: skip


@dataclass(frozen=True)
class Both:
    """shape: ranks on the axes (data, expert, tensor).

    first: which of the two cuts the model first;  outer: what is done over the data axis
    """

    shape: tuple[int, int, int]
    first: str = "tensor"
    outer: str = "nothing"

    @property
    def ranks(self) -> int:
        return math.prod(self.shape)

    def mesh(self) -> DeviceMesh:
        return init_device_mesh("cpu", self.shape, mesh_dim_names=("data", "expert", "tensor"))

    def cut(self, model: Transformer, mesh: DeviceMesh) -> Transformer:
        """The model after both techniques, and the outer one where it cuts as well."""
        for technique in ("tensor", "expert") if self.first == "tensor" else ("expert", "tensor"):
            if technique == "tensor":
                tp.parallelize(model, tp.transformer_plan(model), mesh["tensor"])
            else:
                ep.expert_parallel(model, mesh["data", "expert"], "expert")
        if self.outer in ("fully_shard", "FullyShardedDataParallel"):
            shard = getattr(sharding, self.outer)
            for block in model.blocks:
                shard(block, mesh=mesh["data"])
            shard(model, mesh=mesh["data"])
        return model

    def optimizer(self, model: nn.Module, mesh: DeviceMesh) -> torch.optim.Optimizer:
        if self.outer != "ZeRO-1":
            return sgd(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        group = mesh.get_group("data")
        return sharding.ZeroRedundancyOptimizer(trained, torch.optim.SGD, group, **SGD)

    def share(self, mesh: DeviceMesh, x: torch.Tensor) -> torch.Tensor:
        """This rank's part of a batch, which tensor ranks share."""
        return x.chunk(self.ranks // self.shape[2])[dist.get_rank() // self.shape[2]]

    def training(self, config: TransformerConfig, seed: int = 0) -> Training:
        return Training(self, config, seed)

    def __str__(self) -> str:
        return f"{self.outer} over {self.first} first, {' x '.join(map(str, self.shape))}"


class Training:
    """A model that both have cut, and its optimizer. Only the first rank's start is the truth's."""

    def __init__(self, layout: Both, config: TransformerConfig, seed: int = 0) -> None:
        logging.disable(logging.WARNING)  # torch's, of two small messages that might be one
        self.layout, self.config, self.mesh = layout, config, layout.mesh()
        seed = seed if dist.get_rank() == 0 else seed + 5
        self.model: Any = layout.cut(build(config, seed), self.mesh)
        self.wrapped = self.model
        self.optimizer = layout.optimizer(self.model, self.mesh)

    def backward(self, step: int) -> None:
        """One backward, and the mean over the ranks with tokens of their own."""
        self.optimizer.zero_grad()
        x, y = (self.layout.share(self.mesh, t) for t in batch(self.config, step))
        self.model.loss(x, y).backward()
        ep.average_gradients(self.model, self.mesh["data", "expert"])

    def step(self, number: int) -> None:
        self.backward(number)
        clip_grad_norm(self.model, MAX_NORM)
        self.optimizer.step()


def together(layout: Both, config: TransformerConfig, steps: int = 3) -> Steps:
    """Training on this rank, clipped by the 2-norm."""
    training, found = Training(layout, config), Steps()
    for step in range(steps):
        training.backward(step)
        found.norms.append([clip_grad_norm(training.model, 1e9, kind).item() for kind in NORMS])
        found.gradients.append(full_gradients(training.model))
        clip_grad_norm(training.model, MAX_NORM)
        training.optimizer.step()
    found.state = full_state_dict(training.model)
    return found
