"""A pipeline as one of two techniques: how each pair with it is put together, and what training leaves behind."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dtcourse import sharding
from dtcourse.expert_parallel import average_gradients, expert_parallel
from dtcourse.models import MoE, Transformer, TransformerConfig
from dtcourse.parameters.clipping import clip_grad_norm
from dtcourse.parameters.whole import full_gradients, full_state_dict
from dtcourse.pipeline_parallel import (
    Pipeline,
    Stage,
    gpipe,
    interleaved_1f1b,
    layers_of,
    one_f_one_b,
    split,
)
from tests.pairs import layouts
from tests.pairs.layouts import MAX_NORM, NORMS, Steps, batch, sgd

MICRO_BATCHES = 3
SCHEDULES = {
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "interleaved": lambda ranks, m: interleaved_1f1b(ranks, m, 2),
}
SHARDED = ("fully_shard", "FullyShardedDataParallel")
ZERO = ("ZeRO-1", "ZeRO-2", "reduce_gradients")
# 6 experts are as many for each of 2 and of 3 ranks; their gates' losses count about as much as the main one.
EXPERTS = replace(layouts.EXPERTS, experts=6, balancing=0.7)

# 2 and 3 tensor ranks share 6 heads; tied, and a vocabulary that divides by neither.
SIX_HEADS = replace(layouts.GPT2, d_model=12, n_heads=6)
# The tied weight's gradient has its owner on one replica of the first stage and on the other of the last.
TWO_OWNERS = replace(layouts.GPT2, max_length=32)


def build(config: TransformerConfig, seed: int = 0) -> Transformer:
    """As layouts.build, with a z-loss where there are gates."""
    model = layouts.build(config, seed)
    for part in model.modules():
        if isinstance(part, MoE):
            part.z = 0.2
    return model


@dataclass(frozen=True)
class Piped:
    """other: what else is done, over the axis beside that of the pipeline.

    shape: ranks on the axes (other, pipe)
    """

    other: str
    schedule: str
    shape: tuple[int, int] = (2, 2)

    @property
    def ranks(self) -> int:
        return math.prod(self.shape)

    def mesh(self) -> DeviceMesh:
        return init_device_mesh("cpu", self.shape, mesh_dim_names=("other", "pipe"))

    def pipeline(self, config: TransformerConfig, mesh: DeviceMesh, seed: int = 0) -> Pipeline:
        """The first rank's start of the other axis is the truth's, where the technique sees to it."""
        sees_to_it = self.other in (*SHARDED, "expert", "ZeRO-2")
        first = mesh["other"].get_local_rank() == 0 or not sees_to_it
        model = build(config, seed=seed if first else seed + 5)
        if self.other in ("tensor", "sequence"):
            layouts.INNER[self.other](model, {"inner": mesh["other"]})  # type: ignore[arg-type]
        if self.other == "expert":
            expert_parallel(model, mesh["other"])
        schedule = SCHEDULES[self.schedule](self.shape[1], MICRO_BATCHES)
        layers = layers_of(model)
        numbers = torch.arange(len(layers)).tensor_split(schedule.num_stages)
        ranges = [range(int(n[0]), int(n[-1]) + 1) for n in numbers]
        stages: list[Any] = split(layers, ranges, schedule, mesh["pipe"].get_local_rank())
        if self.other in SHARDED:
            shard = getattr(sharding, self.other)
            for stage in stages:
                shard_stage(shard, stage, mesh["other"])
        if self.other == "ZeRO-2":
            optimizer = zero(stages, mesh)
            stages = [
                sharding.ShardedDataParallel(one, optimizer, find_unused_parameters=True)
                for one in stages
            ]
        replicas = mesh.get_group("other") if self.other in ("data_parallel", "ZeRO-1") else None
        return Pipeline(stages, schedule, loss, mesh.get_group("pipe"), data_parallel=replicas)

    def optimizer(self, pipeline: Pipeline, mesh: DeviceMesh) -> torch.optim.Optimizer:
        """SGD; of ZeRO each rank of the other axis steps for a share of its stages' parameters."""
        if self.other == "ZeRO-2":
            return next(iter(pipeline.module)).optimizer  # type: ignore[return-value]
        return zero(pipeline.module, mesh) if self.other in ZERO else sgd(pipeline.module)

    def batch(self, config: Any, mesh: DeviceMesh, step: int) -> list[torch.Tensor]:
        """This rank's part: tensor ranks share one."""
        parts = 1 if self.other in ("tensor", "sequence") else self.shape[0]
        mine = mesh["other"].get_local_rank() % parts
        return [t.chunk(parts)[mine] for t in batch(config, step)]

    def training(self, config: TransformerConfig, seed: int = 0) -> Training:
        return Training(self, config, seed)

    def __str__(self) -> str:
        return f"{self.other} x {self.schedule}, {self.shape[0]} x {self.shape[1]}"


def zero(
    stages: Iterable[nn.Module], mesh: DeviceMesh, axis: str = "other"
) -> sharding.ZeroRedundancyOptimizer:
    """Of all stages of a rank, over one axis."""
    trained = [p for stage in stages for p in stage.parameters() if p.requires_grad]
    return sharding.ZeroRedundancyOptimizer(
        list(dict.fromkeys(trained)), torch.optim.SGD, mesh.get_group(axis), **layouts.SGD
    )


def shard_stage(shard: Any, stage: Stage, mesh: DeviceMesh) -> None:
    for layer in stage:
        shard(layer, mesh=mesh)
    shard(stage, mesh=mesh)


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


@dataclass
class PipedSteps(Steps):
    """losses: what each step returned, None but on the last stage's ranks."""

    losses: list[float | None] = field(default_factory=list)


class Training:
    """A pipeline on this rank, and its optimizer."""

    def __init__(self, layout: Piped, config: TransformerConfig, seed: int = 0) -> None:
        self.layout, self.config, self.mesh = layout, config, layout.mesh()
        self.pipeline = layout.pipeline(config, self.mesh, seed)
        self.wrapped = self.pipeline.module
        self.optimizer: Any = layout.optimizer(self.pipeline, self.mesh)

    def backward(self, number: int) -> float | None:
        """All micro-batches of a step, and the mean over the other axis."""
        self.optimizer.zero_grad()
        value = self.pipeline.step(*self.layout.batch(self.config, self.mesh, number))
        if self.layout.other == "expert":
            average_gradients(self.wrapped, self.mesh["other"])
        if self.layout.other == "reduce_gradients":
            self.optimizer.reduce_gradients()
        return value

    def step(self, number: int) -> None:
        self.backward(number)
        clip_grad_norm(self.wrapped, MAX_NORM)
        self.optimizer.step()


def together(layout: Piped, config: TransformerConfig, steps: int = 3) -> PipedSteps:
    """Training on this rank of many, clipped by the 2-norm."""
    logging.disable(logging.WARNING)
    training, found = layout.training(config), PipedSteps()
    model = training.wrapped
    for step in range(steps):
        found.losses.append(training.backward(step))
        found.norms.append([clip_grad_norm(model, 1e9, kind).item() for kind in NORMS])
        found.gradients.append(full_gradients(model))
        clip_grad_norm(model, MAX_NORM)
        training.optimizer.step()
    found.state = full_state_dict(model)
    return found
