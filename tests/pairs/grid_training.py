"""Training on a grid, and what it is held against: one process on the same micro-batches."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dtcourse import expert_parallel as ep
from dtcourse import sharding
from dtcourse import tensor_parallel as tp
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.models import Transformer
from dtcourse.parameters.clipping import clip_grad_norm
from dtcourse.parameters.whole import full_gradients, full_state_dict
from dtcourse.pipeline_parallel import Pipeline, layers_of, split
from dtcourse.sequence_parallel import parallelize_sequence
from tests.pairs.grid import BATCH, WITH_HALVES, WITH_HOOKS, Grid, Task
from tests.pairs.layouts import MAX_NORM, NORMS, SGD, Steps
from tests.pairs.micro_batches import in_micro_batches
from tests.pairs.pipelines import MICRO_BATCHES, SHARDED, loss, shard_stage


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Of the frozen ones too: a stage may have no other."""
    return torch.optim.SGD(model.parameters(), **SGD)


def zero(parameters: Iterable[nn.Parameter], mesh: DeviceMesh) -> Any:
    return sharding.ZeroRedundancyOptimizer(
        list(dict.fromkeys(parameters)), torch.optim.SGD, mesh.get_group("data"), **SGD
    )


class Alone:
    """One process, on the micro-batches of a grid: what a gate's losses are about."""

    def __init__(self, task: Task) -> None:
        self.task, self.model = task, task.build()
        self.optimizer = sgd(self.model)

    def backward(self, grid: Grid, step: int) -> None:
        self.optimizer.zero_grad()
        parts = (in_micro_batches(t, grid.parts, grid.micro_batches) for t in self.task.batch(step))
        for x, y in zip(*parts, strict=True):
            (self.model.loss(x, y) * len(x) / BATCH).backward()

    def steps(self, grids: Sequence[Grid], first: int = 0) -> Steps:
        """A step on the micro-batches of each."""
        found = Steps()
        for step, grid in enumerate(grids, first):
            self.backward(grid, step)
            grads = [p.grad for p in self.model.parameters() if p.grad is not None]
            found.norms.append([nn.utils.get_total_norm(grads, kind).item() for kind in NORMS])
            found.gradients.append(
                {
                    n: None if p.grad is None else p.grad.clone()
                    for n, p in self.model.named_parameters()
                }
            )
            nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
            self.optimizer.step()
        found.state = {n: t.clone() for n, t in self.model.state_dict().items()}
        return found


class Training:
    """This rank's part of a model, and its optimizer. Only the first ranks' start is the truth's."""

    def __init__(self, grid: Grid, task: Task, seed: int = 0) -> None:
        logging.disable(logging.WARNING)  # torch's, of two small messages that might be one
        self.grid, self.task, self.mesh = grid, task, grid.mesh()
        self.pipeline: Pipeline | None = None
        model: Any = self.cut(task.build(seed if self.is_first() else seed + 5))
        self.model = self.in_stages(model) if grid.pipe > 1 else self.in_one(model)

    @property
    def sees_to_start(self) -> bool:
        """Whether what is done over the data axis makes the starts one."""
        return (
            self.grid.pipe == 1 or self.grid.outer in WITH_HOOKS or bool(self.task.config.experts)
        )

    def is_first(self) -> bool:
        axes = ("data", "expert", "tensor") if self.sees_to_start else ("expert", "tensor")
        return all(self.mesh.get_local_rank(axis) == 0 for axis in axes)

    def cut(self, model: Transformer) -> Transformer:
        for technique in ("expert", "tensor") if self.grid.expert_first else ("tensor", "expert"):
            if technique == "expert" and self.task.config.experts:
                ep.expert_parallel(model, self.mesh["data", "expert"], "expert")
            if technique == "tensor" and self.grid.tensor > 1:
                tp.parallelize(model, tp.transformer_plan(model), self.mesh["tensor"])
        if self.grid.sequence:
            parallelize_sequence(model, self.mesh["tensor"])
        return model

    def in_one(self, model: Any) -> Any:
        outer, data = self.grid.outer, self.mesh["data"]
        if outer in SHARDED:
            shard = getattr(sharding, outer)
            for block in model.blocks:
                shard(block, mesh=data)
            shard(model, mesh=data)
        by_owners = "ZeRO" in outer
        self.optimizer: Any = zero(model.parameters(), self.mesh) if by_owners else sgd(model)
        if outer == "ZeRO-2":
            return sharding.ShardedDataParallel(model, self.optimizer, find_unused_parameters=True)
        if outer in ("DistributedDataParallel", "ZeRO-1") and not self.task.config.experts:
            return DistributedDataParallel(model, device_mesh=data, find_unused_parameters=True)
        return model

    def stages(self, layers: Any, ranges: Any, schedule: Any) -> list[Any]:
        return list(split(layers, ranges, schedule, self.mesh["pipe"].get_local_rank()))

    def in_stages(self, model: Any) -> Any:
        outer, data = self.grid.outer, self.mesh["data"]
        schedule = WITH_HALVES[self.grid.schedule](self.grid.pipe, MICRO_BATCHES)
        layers = layers_of(model)
        numbers = torch.arange(len(layers)).tensor_split(schedule.num_stages)
        ranges = [range(int(n[0]), int(n[-1]) + 1) for n in numbers]
        stages = self.stages(layers, ranges, schedule)
        if outer in SHARDED:
            for stage in stages:
                shard_stage(getattr(sharding, outer), stage, data)
        if "ZeRO" in outer:
            self.optimizer = zero((p for one in stages for p in one.parameters()), self.mesh)
        if outer == "ZeRO-2":
            stages = [
                sharding.ShardedDataParallel(one, self.optimizer, find_unused_parameters=True)
                for one in stages
            ]
        averaged = outer in ("DistributedDataParallel", "ZeRO-1") and not self.task.config.experts
        self.pipeline = Pipeline(
            stages,
            schedule,
            loss,
            self.mesh.get_group("pipe"),
            data_parallel=data.get_group() if averaged else None,
        )
        if "ZeRO" not in outer:
            self.optimizer = sgd(self.pipeline.module)
        return self.pipeline.module

    def backward(self, step: int) -> None:
        """One step's gradients, averaged over the ranks with tokens of their own."""
        self.optimizer.zero_grad()
        mine = self.mesh.get_local_rank("data") * self.grid.expert + self.mesh.get_local_rank(
            "expert"
        )
        x, y = (t.chunk(self.grid.parts)[mine] for t in self.task.batch(step))
        if self.pipeline is not None:
            self.pipeline.step(x, y)
        elif self.task.config.experts:
            self.model.loss(x, y).backward()
        else:  # its forward is what reduces
            F.cross_entropy(self.model(x).flatten(0, 1), y.flatten()).backward()
        if self.task.config.experts:
            ep.average_gradients(self.model, self.mesh["data", "expert"])

    def steps(self, numbers: Sequence[int]) -> Steps:
        """Clipped by the 2-norm."""
        found = Steps()
        for step in numbers:
            self.backward(step)
            found.norms.append([clip_grad_norm(self.model, 1e9, kind).item() for kind in NORMS])
            found.gradients.append(full_gradients(self.model))
            clip_grad_norm(self.model, MAX_NORM)
            self.optimizer.step()
        found.state = full_state_dict(self.model)
        return found
