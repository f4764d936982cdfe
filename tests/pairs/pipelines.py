"""A pipeline as one of two techniques: how each pair with it is put together, and what training leaves behind."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dtcourse import checkpoint, sharding
from dtcourse.models import TransformerConfig
from dtcourse.parameters.clipping import clip_grad_norm
from dtcourse.parameters.whole import full_gradients, full_state_dict
from dtcourse.pipeline_parallel import Pipeline, Stage, gpipe, layers_of, one_f_one_b, split
from tests.pairs.layouts import MAX_NORM, NORMS, Steps, batch, build, sgd, tensor

MICRO_BATCHES = 3
SCHEDULES = {"GPipe": gpipe, "1F1B": one_f_one_b}


@dataclass(frozen=True)
class Piped:
    """A pipeline of two stages. other: what else is done, over the axis beside that of the pipeline."""

    other: str
    schedule: str

    def mesh(self) -> DeviceMesh:
        return init_device_mesh("cpu", (2, 2), mesh_dim_names=("other", "pipe"))

    def pipeline(self, config: TransformerConfig, mesh: DeviceMesh, seed: int = 0) -> Pipeline:
        """The first rank's start of the other axis is the truth's, where the technique sees to it."""
        sharded = self.other in ("fully_shard", "FullyShardedDataParallel")
        first = mesh["other"].get_local_rank() == 0 or not sharded
        model = build(config, seed=seed if first else seed + 5)
        if self.other == "tensor":
            tensor(model, {"inner": mesh["other"]})  # type: ignore[arg-type]
        schedule = SCHEDULES[self.schedule](2, MICRO_BATCHES)
        layers = layers_of(model)
        half = len(layers) // 2
        ranges = [range(half), range(half, len(layers))]
        stages = split(layers, ranges, schedule, mesh["pipe"].get_local_rank())
        if sharded:
            shard = getattr(sharding, self.other)
            for stage in stages:
                shard_stage(shard, stage, mesh["other"])
        replicas = mesh.get_group("other") if self.other in ("data_parallel", "ZeRO-1") else None
        group = mesh.get_group("pipe")
        return Pipeline(stages, schedule, loss, group, data_parallel=replicas)

    def optimizer(self, model: nn.Module, mesh: DeviceMesh) -> torch.optim.Optimizer:
        """SGD; of ZeRO-1 each rank of the other axis steps for a share of its stage's parameters."""
        if self.other != "ZeRO-1":
            return sgd(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        group = mesh.get_group("other")
        return sharding.ZeroRedundancyOptimizer(
            trained, torch.optim.SGD, group, lr=0.3, momentum=0.9
        )

    def batch(self, config: Any, mesh: DeviceMesh, step: int) -> list[torch.Tensor]:
        """This rank's part: tensor ranks share one."""
        parts = 1 if self.other == "tensor" else 2
        mine = mesh["other"].get_local_rank() % parts
        return [t.chunk(parts)[mine] for t in batch(config, step)]


def shard_stage(shard: Any, stage: Stage, mesh: DeviceMesh) -> None:
    for layer in stage:
        shard(layer, mesh=mesh)
    shard(stage, mesh=mesh)


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def together(layout: Piped, config: TransformerConfig, steps: int = 3) -> Steps:
    """Training on this rank of four, clipped by the 2-norm."""
    logging.disable(logging.WARNING)
    mesh, found = layout.mesh(), Steps()
    pipeline = layout.pipeline(config, mesh)
    model = pipeline.module
    optimizer = layout.optimizer(model, mesh)
    for step in range(steps):
        optimizer.zero_grad()
        pipeline.step(*layout.batch(config, mesh, step))
        found.norms.append([clip_grad_norm(model, 1e9, kind).item() for kind in NORMS])
        found.gradients.append(full_gradients(model))
        clip_grad_norm(model, MAX_NORM)
        optimizer.step()
    found.state = full_state_dict(model)
    return found


def take_step(
    pipeline: Pipeline, optimizer: Any, layout: Piped, mesh: DeviceMesh, step: int, config: Any
) -> None:
    optimizer.zero_grad()
    pipeline.step(*layout.batch(config, mesh, step))
    clip_grad_norm(pipeline.module, MAX_NORM)
    optimizer.step()


def write(layout: Piped, config: TransformerConfig, folder: str, steps: int) -> Any:
    """Some steps, saved: the whole state."""
    mesh = layout.mesh()
    pipeline = layout.pipeline(config, mesh)
    optimizer = layout.optimizer(pipeline.module, mesh)
    for step in range(steps):
        take_step(pipeline, optimizer, layout, mesh, step, config)
    checkpoint.save(folder, pipeline.module, optimizer)
    return full_state_dict(pipeline.module)


def read(layout: Piped, config: TransformerConfig, folder: str, steps: int) -> Any:
    """Into a model that starts elsewhere: the whole state, and what it is after one step more."""
    mesh = layout.mesh()
    pipeline = layout.pipeline(config, mesh, seed=7)
    optimizer = layout.optimizer(pipeline.module, mesh)
    checkpoint.load(folder, pipeline.module, optimizer)
    loaded = full_state_dict(pipeline.module)
    take_step(pipeline, optimizer, layout, mesh, steps, config)
    return loaded, full_state_dict(pipeline.module)


def write_alone(config: TransformerConfig, folder: str, steps: int) -> Any:
    """The same in one process, without the layer that nobody uses."""
    model = build(config)
    del model.unused
    optimizer = sgd(model)
    for step in range(steps):
        step_alone(model, optimizer, config, step)
    checkpoint.save(folder, model, optimizer)
    return full_state_dict(model)


def read_alone(config: TransformerConfig, folder: str, steps: int) -> Any:
    model = build(config, seed=7)
    del model.unused
    optimizer = sgd(model)
    checkpoint.load(folder, model, optimizer)
    loaded = full_state_dict(model)
    step_alone(model, optimizer, config, steps)
    return loaded, full_state_dict(model)


def step_alone(model: Any, optimizer: Any, config: TransformerConfig, step: int) -> None:
    optimizer.zero_grad()
    model.loss(*batch(config, step)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    optimizer.step()
