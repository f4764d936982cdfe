"""Two techniques over one model on a mesh of two axes: how each pair is put together, and one process's numbers.

Which of them work, and which are refused, says table.py.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dtcourse import expert_parallel as ep
from dtcourse import sharding
from dtcourse import tensor_parallel as tp
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.parameters.clipping import clip_grad_norm
from dtcourse.parameters.replicas import broadcast_model
from dtcourse.parameters.whole import full_gradients, full_state_dict
from dtcourse.sequence_parallel import parallelize_sequence

BATCH, LENGTH = 12, 8

# Tied, with biases, and a vocabulary that does not divide; frozen and unused parameters are added below.
GPT2 = TransformerConfig(vocab=31, n_layers=2, d_model=16, n_heads=4, max_length=LENGTH)
# Not tied, with grouped heads; 10 is no multiple of 3, and 1 head is held by two tensor ranks.
LLAMA = TransformerConfig(
    vocab=30, n_layers=2, d_model=20, n_heads=2, n_kv_heads=2, d_ff=10, max_length=LENGTH, tied=False, bias=False,
    norm="rms", mlp="swiglu",
)  # fmt: skip
ONE_KV_HEAD = TransformerConfig(
    vocab=30, n_layers=1, d_model=16, n_heads=4, n_kv_heads=1, max_length=LENGTH
)
EXPERTS = TransformerConfig(
    vocab=31, n_layers=2, d_model=16, n_heads=4, max_length=LENGTH, d_ff=6, experts=4
)


def build(config: TransformerConfig, seed: int = 0) -> Transformer:
    """A model with a frozen matrix, a frozen norm, and a layer that nobody uses."""
    model = Transformer(config, seed=seed).double()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model.unused = nn.Linear(3, 5).double()
    # A key's bias has no gradient but rounding: the softmax takes it out again.
    frozen = [n for n, _ in model.named_parameters() if n.endswith("attention.key.bias")]
    for name in [*frozen, "blocks.0.attention.output.weight", "blocks.0.norm_2.weight"]:
        model.get_parameter(name).requires_grad_(False)
    return model


def used(by_name: dict[str, Any]) -> dict[str, Any]:
    """Without the layer that nobody uses: it is in no layer of the model."""
    return {name: value for name, value in by_name.items() if not name.startswith("unused.")}


def batch(config: TransformerConfig, step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(step)
    x, y = (torch.randint(config.vocab, (BATCH, LENGTH), generator=make) for _ in range(2))
    return x, y


# --- the techniques -------------------------------------------------------------------------------------------------


def tensor(model: Any, mesh: DeviceMesh) -> None:
    tp.parallelize(model, tp.transformer_plan(model), mesh["inner"])


def sequence(model: Any, mesh: DeviceMesh) -> None:
    tensor(model, mesh)
    parallelize_sequence(model, mesh["inner"])


def expert(model: Any, mesh: DeviceMesh) -> None:
    ep.expert_parallel(model, mesh, "inner")


def in_units(shard: Any) -> Any:
    def apply(model: Any, mesh: DeviceMesh) -> None:
        for block in model.blocks:
            shard(block, mesh=mesh["data"])
        shard(model, mesh=mesh["data"])

    return apply


def nothing(model: Any, mesh: DeviceMesh) -> None:
    """Left out."""


INNER = {"nothing": nothing, "tensor": tensor, "sequence": sequence, "expert": expert}
# ZeRO is an optimizer, and what averages gradients for it: Training puts them together.
OUTER = {
    "nothing": nothing,
    "ZeRO-1": nothing,
    "ZeRO-2": nothing,
    "reduce_gradients": nothing,
    "fully_shard": in_units(sharding.fully_shard),
    "FullyShardedDataParallel": in_units(sharding.FullyShardedDataParallel),
}


@dataclass(frozen=True)
class Layout:
    """shape: ranks on the axes (data, inner), the slowest first."""

    outer: str
    inner: str
    shape: tuple[int, int]

    @property
    def ranks(self) -> int:
        return math.prod(self.shape)

    def mesh(self) -> DeviceMesh:
        return init_device_mesh("cpu", self.shape, mesh_dim_names=("data", "inner"))

    def apply(self, model: Any, mesh: DeviceMesh) -> Any:
        INNER[self.inner](model, mesh)
        OUTER[self.outer](model, mesh)
        return model

    def training(self, config: TransformerConfig, seed: int = 0) -> Training:
        return Training(self, config, seed)

    def __str__(self) -> str:
        return f"{self.outer} over {self.inner}, {self.shape[0]} x {self.shape[1]}"


# --- training -------------------------------------------------------------------------------------------------------


@dataclass
class Steps:
    """What training has left behind: gradients before each step, whole, their norms, and the state at the end."""

    gradients: list[dict[str, Any]] = field(default_factory=list)
    norms: list[list[float]] = field(default_factory=list)
    state: dict[str, torch.Tensor] = field(default_factory=dict)


NORMS = (1.0, 2.0, math.inf)
MAX_NORM = 0.3


SGD = {"lr": 0.3, "momentum": 0.9}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], **SGD)


class Training:
    """A layout's model, its optimizer, and what averages gradients besides the model's own hooks."""

    def __init__(self, layout: Layout, config: TransformerConfig, seed: int = 0) -> None:
        self.layout, self.config, self.mesh = layout, config, layout.mesh()
        self.model = layout.apply(build(config, seed), self.mesh)
        self.wrapped = self.model
        if layout.outer not in ("ZeRO-1", "ZeRO-2", "reduce_gradients"):
            self.optimizer = sgd(self.model)
            return
        data = self.mesh["data"]
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = sharding.ZeroRedundancyOptimizer(
            trained, torch.optim.SGD, data.get_group(), **SGD
        )
        if layout.outer == "ZeRO-2":
            self.wrapped = sharding.ShardedDataParallel(
                self.model, self.optimizer, find_unused_parameters=True
            )
        elif layout.outer == "reduce_gradients":
            broadcast_model(self.model, group=data.get_group())
        elif layout.inner != "expert":  # average_gradients does it
            self.wrapped = DistributedDataParallel(
                self.model, device_mesh=data, find_unused_parameters=True
            )

    def backward(self, step: int) -> None:
        """One backward, and the mean over the ranks."""
        self.optimizer.zero_grad()
        if self.wrapped is self.model:
            backward(self.model, self.layout, self.mesh, step, self.config)
        else:  # its forward is what reduces
            x, y = (share(self.layout, self.mesh, t) for t in batch(self.config, step))
            nn.functional.cross_entropy(self.wrapped(x).flatten(0, 1), y.flatten()).backward()
        if self.layout.outer == "reduce_gradients":
            self.optimizer.reduce_gradients()

    def step(self, number: int) -> None:
        self.backward(number)
        clip_grad_norm(self.wrapped, MAX_NORM)
        self.optimizer.step()


def alone(config: TransformerConfig, steps: int = 3) -> Steps:
    """One process on the whole batch, in plain PyTorch. Clipped by the 2-norm."""
    model, found = build(config), Steps()
    optimizer = sgd(model)
    for step in range(steps):
        optimizer.zero_grad()
        model.loss(*batch(config, step)).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        found.norms.append([nn.utils.get_total_norm(grads, kind).item() for kind in NORMS])
        found.gradients.append(
            {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
        )
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
    found.state = {n: t.clone() for n, t in model.state_dict().items()}
    return found


def share(layout: Layout, mesh: DeviceMesh, x: torch.Tensor) -> torch.Tensor:
    """This rank's part of a batch: tensor ranks share one, ranks with experts have tokens of their own."""
    if layout.inner == "expert":
        return x.chunk(dist.get_world_size())[dist.get_rank()]
    return x.chunk(layout.shape[0])[mesh["data"].get_local_rank()]


def backward(model: Any, layout: Layout, mesh: DeviceMesh, step: int, config: Any) -> None:
    """One backward, and the mean over the ranks."""
    x, y = (share(layout, mesh, t) for t in batch(config, step))
    model.loss(x, y).backward()
    if layout.inner == "expert":
        ep.average_gradients(model, mesh)


def together(layout: Layout, config: TransformerConfig, steps: int = 3) -> Steps:
    """The same on this rank of many. Only the first ranks' start is the truth's."""
    logging.disable(logging.WARNING)  # torch's, of two small messages that might be one
    training, found = Training(layout, config, seed=0 if dist.get_rank() == 0 else 5), Steps()
    model = training.wrapped
    for step in range(steps):
        training.backward(step)
        found.norms.append([clip_grad_norm(model, 1e9, kind).item() for kind in NORMS])
        found.gradients.append(full_gradients(model))
        clip_grad_norm(model, MAX_NORM)
        training.optimizer.step()
    found.state = full_state_dict(model)
    return found
