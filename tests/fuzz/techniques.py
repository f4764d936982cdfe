"""Every technique with its options, as the fuzz test runs it: how it is made, read, and what it is not for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dtcourse.asynchronous import ColocatedWorker, DiLoCo, GossipSGD, LocalSGD, mixing
from dtcourse.communication_scheduling import PriorityDataParallel
from dtcourse.compression import CompressionState, Identity, compression_hook
from dtcourse.data_parallel import (
    DistributedDataParallel,
    PerParameterDataParallel,
    average_gradients,
    broadcast_model,
)
from dtcourse.sharding import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    ShardedDataParallel,
    ZeroRedundancyOptimizer,
    full_gradients,
    full_state_dict,
    fully_shard,
)
from dtcourse.verify.chains import Chain
from dtcourse.verify.gradients import Gradients
from dtcourse.verify.harness import Steps, nothing, train
from dtcourse.verify.programs import Program, Truth
from tests.fuzz.fitting import (
    unfit_for_zeros,
    unfit_local,
    unfit_own_buffers,
    unfit_per_parameter,
    unfit_static,
    unfit_units,
    units_of,
)

TINY = 1e-6  # MiB: a bucket for each parameter
SGD = torch.optim.SGD


@dataclass(frozen=True)
class Technique:
    """wrap: the model, and what the program says of units -> what is trained; unfit: why a program is not for it,
    or "".

    The other fields are arguments of harness.train, with the program where they need it.
    """

    name: str
    wrap: Callable[[Chain, Program], nn.Module]
    optimizer: Callable[[nn.Module, Program], torch.optim.Optimizer]
    after_backward: Callable[[nn.Module], Any] = nothing
    before_step: Callable[[Any], Any] = nothing
    read: Callable[[Any], Gradients] | None = None
    read_parameters: Callable[[nn.Module], dict[str, torch.Tensor]] | None = None
    unfit: Callable[[Program, Truth], str] = lambda program, truth: ""
    none_is_zero: bool = False

    def run(self, program: Program) -> Steps:
        """Trains on this rank. Only rank 0's start is the truth's."""
        rank = dist.get_rank()
        model = program.build(0 if rank == 0 else 1000 + rank)
        wrapped = self.wrap(model, program)
        return train(
            wrapped,
            model,
            program.plan(rank),
            optimizer=lambda w: self.optimizer(w, program),
            after_backward=self.after_backward,
            before_step=self.before_step,
            read=self.read,
            read_parameters=self.read_parameters,
            set_to_none=program.set_to_none,
        )


def trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


def plain_sgd(wrapped: nn.Module, program: Program) -> torch.optim.Optimizer:
    return SGD(trained(wrapped), **program.sgd_options)


# --- making and reading -----------------------------------------------------------------------------------------


def ddp(name: str, unfit: Any = None, **options: Any) -> Technique:
    return Technique(
        name,
        lambda model, program: DistributedDataParallel(model, **options),
        plain_sgd,
        unfit=unfit or (lambda program, truth: ""),
    )


def compressed(model: Chain, program: Program) -> nn.Module:
    """Nothing is left out, and all of compression's machinery is in between."""
    wrapped = DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=TINY)
    state = CompressionState(Identity(takes=torch.float64))
    wrapped.register_comm_hook(state, compression_hook)
    return wrapped


def naive(model: Chain, program: Program) -> Chain:
    broadcast_model(model)
    return model


def zero_optimizer(module: nn.Module, program: Program) -> ZeroRedundancyOptimizer:
    return ZeroRedundancyOptimizer(trained(module), SGD, **program.sgd_options)


class WithOptimizer(nn.Module):
    """A model and its ZeRO optimizer, which reduces the gradients in place of a wrapper."""

    def __init__(self, model: Chain, program: Program) -> None:
        super().__init__()
        broadcast_model(model)
        self.module, self.optimizer = model, zero_optimizer(model, program)

    def forward(self, *args: Any) -> Any:
        return self.module(*args)


def zero2(name: str, unfit: Any = None, **options: Any) -> Technique:
    return Technique(
        name,
        lambda model, program: ShardedDataParallel(
            model, zero_optimizer(model, program), **options
        ),
        lambda wrapped, program: wrapped.optimizer,  # type: ignore[return-value]
        read=of_owners,
        unfit=unfit or (lambda program, truth: ""),
    )


def of_owners(wrapped: Any) -> Gradients:
    """Every parameter's gradient, from its owner."""
    owner, rank = wrapped.optimizer.owner, dist.get_rank()
    own = {n: p.grad for n, p in wrapped.module.named_parameters() if owner.get(p) == rank}
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, own)
    whole = {name: gradient for part in parts for name, gradient in part.items()}
    return {name: whole.get(name) for name, _ in wrapped.module.named_parameters()}


def priority(name: str, unfit: Any = None, **options: Any) -> Technique:
    """Its gradients are read on their way, before the layers' own steps."""

    def read(wrapped: Any) -> Gradients:
        means = wrapped.averaged_gradients()
        return {name: means.get(name) for name, _ in wrapped.module.named_parameters()}

    def read_parameters(wrapped: Any) -> dict[str, torch.Tensor]:
        wrapped.synchronize()
        return {n: p.detach().clone() for n, p in wrapped.module.named_parameters()}

    return Technique(
        name,
        lambda model, program: PriorityDataParallel(
            model, plain_sgd(model, program), slice_bytes=64, **options
        ),
        lambda wrapped, program: wrapped.steps.optimizer,  # type: ignore[return-value, union-attr]
        read=read,
        read_parameters=read_parameters,
        unfit=unfit or (lambda program, truth: ""),
    )


def meeting_in_each_step(name: str, method: Callable[[nn.Module, Any], Any]) -> Technique:
    """Local updates in their degenerate case: the mean of steps is the step of the mean gradient."""
    return Technique(
        name,
        lambda model, program: model,
        lambda wrapped, program: method(wrapped, plain_sgd(wrapped, program)),
        read=mean_gradients,
        unfit=unfit_local,
        none_is_zero=True,
    )


class PushAndPull:
    """Servers of the model's parts, on the workers' own ranks, take the steps; here a step is a push and a pull."""

    def __init__(self, model: nn.Module, program: Program) -> None:
        self.own = plain_sgd(model, program)
        self.worker = ColocatedWorker(model, lambda part: SGD(part, **program.sgd_options))

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.own.zero_grad(set_to_none)

    def step(self) -> None:
        self.worker.push()
        self.worker.pull()


def served() -> Technique:
    """Synchronous servers: they step with the mean of what all workers push."""
    workers: list[ColocatedWorker] = []  # of the program that this rank trains

    def optimizer(wrapped: nn.Module, program: Program) -> torch.optim.Optimizer:
        made = PushAndPull(wrapped, program)
        workers[:] = [made.worker]
        return made  # type: ignore[return-value]

    def read_parameters(wrapped: nn.Module) -> dict[str, torch.Tensor]:
        workers.pop().close()
        return {n: p.detach().clone() for n, p in wrapped.named_parameters()}

    return Technique(
        "parameter servers",
        lambda model, program: model,
        optimizer,
        read=mean_gradients,
        read_parameters=read_parameters,
        unfit=unfit_for_zeros,
        none_is_zero=True,
    )


def mean_gradients(model: nn.Module) -> Gradients:
    """The mean of what each rank has; its own stay as they are."""
    found: Gradients = {}
    for name, p in model.named_parameters():
        mean = torch.zeros_like(p) if p.grad is None else p.grad.clone()
        dist.all_reduce(mean)
        found[name] = mean / dist.get_world_size() if p.requires_grad else None
    return found


def sharded(
    name: str, units: str = "blocks", shard: Any = fully_shard, **options: Any
) -> Technique:
    """units: the "root" alone, the "blocks" that the program says, or "all" that share no weight; and the root."""

    def wrap(model: Chain, program: Program) -> nn.Module:
        more = dict(options)
        if shape := more.pop("mesh_shape", None):
            size = dist.get_world_size()
            axes = (size, 1) if shape == "replicate" else (1, size)
            more["mesh"] = init_device_mesh("cpu", axes, mesh_dim_names=("replicate", "shard"))
        for i in sorted(units_of(program, units)):
            shard(model.layers[i], **more)
        return shard(model, **more)

    return Technique(
        name,
        wrap,
        plain_sgd,
        read=full_gradients,
        read_parameters=full_state_dict,
        unfit=unfit_units(units),
    )


TECHNIQUES: dict[str, Technique] = {
    t.name: t
    for t in (
        ddp("DDP, finding unused", find_unused_parameters=True),
        ddp("DDP, finding unused, tiny buckets", find_unused_parameters=True, bucket_cap_mb=TINY),
        ddp("DDP"),
        ddp("DDP, tiny buckets", bucket_cap_mb=TINY, forward_sync_buffers=False),
        ddp("DDP, static graph", unfit_static, static_graph=True, bucket_cap_mb=TINY),
        Technique(
            "naive",
            naive,
            plain_sgd,
            before_step=average_gradients,
            unfit=unfit_for_zeros,
            none_is_zero=True,
        ),
        Technique(
            "per parameter",
            lambda model, program: PerParameterDataParallel(model),
            plain_sgd,
            after_backward=lambda wrapped: wrapped.synchronize(),  # type: ignore[operator]
            unfit=unfit_per_parameter,
        ),
        Technique(
            "ZeRO-1 after DDP",
            lambda model, program: DistributedDataParallel(model, find_unused_parameters=True),
            zero_optimizer,
        ),
        Technique(
            "ZeRO-1, reducing",
            WithOptimizer,
            lambda wrapped, program: wrapped.optimizer,  # type: ignore[return-value]
            before_step=lambda wrapped: wrapped.optimizer.reduce_gradients(),
            read=of_owners,
            unfit=unfit_for_zeros,
            none_is_zero=True,
        ),
        priority("priority", find_unused_parameters=True),
        zero2("ZeRO-2, finding unused", find_unused_parameters=True),
        zero2(
            "ZeRO-2, finding unused, tiny buckets", find_unused_parameters=True, bucket_cap_mb=TINY
        ),
        zero2("ZeRO-2", unfit_own_buffers, bucket_cap_mb=TINY, broadcast_buffers=False),
        sharded("fully_shard"),
        sharded("fully_shard, root alone", "root"),
        sharded("fully_shard, each block", "all"),
        sharded("fully_shard, kept after forward", reshard_after_forward=False),
        sharded("fully_shard, root kept", "all", reshard_after_forward=None),
        sharded("fully_shard, offloaded", offload_policy=CPUOffloadPolicy()),
        sharded("fully_shard, replicated", mesh_shape="replicate"),
        sharded("fully_shard, mesh of two axes", "all", mesh_shape="shard"),
    )
}

# Apart from the others, so that those keep their programs: these two families.
FLAT: dict[str, Technique] = {
    t.name: t
    for t in (
        sharded("flat", shard=FullyShardedDataParallel),
        sharded("flat, each block", "all", FullyShardedDataParallel),
        sharded("flat, kept", shard=FullyShardedDataParallel, reshard_after_forward=False),
        sharded("flat, two axes", "all", FullyShardedDataParallel, mesh_shape="shard"),
    )
}

TALKING_LESS: dict[str, Technique] = {
    t.name: t
    for t in (
        Technique("compressed, all of it", compressed, plain_sgd),
        meeting_in_each_step("local SGD", lambda model, sgd: LocalSGD(model, sgd, 1)),
        meeting_in_each_step("DiLoCo", lambda model, sgd: DiLoCo(model, sgd, 1, 1.0, 0.0)),
        meeting_in_each_step(
            "gossip on a complete graph",
            lambda model, sgd: GossipSGD(
                model, sgd, mixing.complete(dist.get_world_size()), overlap=False
            ),
        ),
        served(),
    )
}
