"""Any techniques together over one model, each on an axis of its own of one mesh: what is put together, as data.

layouts.py, pipelines.py and tensor_experts.py put each pair together by itself; here are three at once and, in
tests/fuzz, what is drawn. How they train is in grid_training.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dtcourse.models import MoE, Transformer, TransformerConfig
from dtcourse.pipeline_parallel import zb_h1
from tests.pairs.pipelines import MICRO_BATCHES, SCHEDULES, SHARDED

BATCH = 12  # samples
WITH_HALVES = SCHEDULES | {"ZB-H1": zb_h1}  # backwards of the last in two halves
AXES = ("pipe", "data", "expert", "tensor")  # the slowest first
WITH_HOOKS = (*SHARDED, "ZeRO-2")  # they send the first rank's start to the others by themselves


@dataclass(frozen=True)
class Grid:
    """Ranks on each axis.

    outer: what is done over the data axis; "nothing" with experts is average_gradients
    """

    data: int = 1
    tensor: int = 1
    expert: int = 1
    pipe: int = 1
    outer: str = "nothing"
    sequence: bool = False
    expert_first: bool = False
    schedule: str = "1F1B"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.pipe, self.data, self.expert, self.tensor

    @property
    def ranks(self) -> int:
        return math.prod(self.shape)

    @property
    def parts(self) -> int:
        """Among how many a batch is divided."""
        return self.data * self.expert

    @property
    def micro_batches(self) -> int:
        return MICRO_BATCHES if self.pipe > 1 else 1

    def mesh(self) -> DeviceMesh:
        return init_device_mesh("cpu", self.shape, mesh_dim_names=AXES)

    def __str__(self) -> str:
        sizes = [f"{getattr(self, axis)} {axis}" for axis in AXES if getattr(self, axis) > 1]
        return f"{self.outer} on {' x '.join(sizes)}"


@dataclass(frozen=True)
class Task:
    """frozen: parameters, by their number; unused: whether the last block has a layer that nobody uses."""

    config: TransformerConfig
    frozen: frozenset[int] = frozenset()
    unused: bool = True

    def build(self, seed: int = 0) -> Transformer:
        """In double. A key's bias is frozen: but for rotary positions it has no gradient but rounding."""
        model = Transformer(self.config, seed=seed).double()
        if self.unused:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                model.blocks[-1].unused = nn.Linear(3, 5).double()
        for number, (name, parameter) in enumerate(model.named_parameters()):
            parameter.requires_grad_(number not in self.frozen and not name.endswith("key.bias"))
        for part in model.modules():
            if isinstance(part, MoE):
                part.z = 0.2
        return model

    def batch(self, step: int) -> list[torch.Tensor]:
        """Tokens and targets."""
        make = torch.Generator().manual_seed(step)
        shape = BATCH, self.config.max_length
        return [torch.randint(self.config.vocab, shape, generator=make) for _ in range(2)]


def zeros_of_none(right: dict[str, Any], mine: dict[str, Any], task: Task) -> dict[str, Any]:
    """What is right where average_gradients makes zeros of gradients that nobody has."""
    if not task.config.experts:
        return right
    return {
        name: torch.zeros_like(mine[name]) if value is None and mine[name] is not None else value
        for name, value in right.items()
    }
