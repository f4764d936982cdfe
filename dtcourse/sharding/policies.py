"""What sharding may be told: dtypes, where the shards live, and over which ranks. Fields and names are PyTorch's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """Dtypes of computation apart from the parameters' own, in which shards, gradients and optimizer states are kept.

    param_dtype:  parameters are gathered and computed with in this; None: their own
    reduce_dtype: gradients are summed over the ranks in this; None: param_dtype
    output_dtype: the module's floating-point results are cast to this; None: as they are
    cast_forward_inputs: floating-point inputs are cast to param_dtype
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True


@dataclass(frozen=True)
class OffloadPolicy:
    """No offload: shards live where the computation is."""


@dataclass(frozen=True)
class CPUOffloadPolicy(OffloadPolicy):
    """Shards, their gradients and so the optimizer's step live in host memory; each unit's part is copied to the device
    to be gathered, and its reduced gradient back.

    pin_memory: page-locked host memory, where the device is a GPU: copies run beside the computation
    """

    pin_memory: bool = True


@dataclass(frozen=True)
class ShardGroups:
    """The process groups of sharding: who shares a model out, and who holds the same shards.

    shard:     the group over which parameters are cut into parts
    replicate: the group of ranks that hold the same shards (hybrid sharding), or None
    """

    shard: Any
    replicate: Any = None
    mesh: DeviceMesh | None = None

    @property
    def num_ranks(self) -> int:
        """All ranks over which gradients are averaged."""
        copies = dist.get_world_size(self.replicate) if self.replicate is not None else 1
        return dist.get_world_size(self.shard) * copies


def shard_groups_of(mesh: DeviceMesh | None) -> ShardGroups:
    """The groups of a mesh: one axis (shard), or two (replicate, shard); None is all ranks.

    Raises ValueError for another number of axes, or where this rank is not in the mesh.
    """
    if mesh is None:
        if not dist.is_initialized():
            raise ValueError(
                "sharding needs a process group: call it in a rank, under launch or torchrun"
            )
        return ShardGroups(dist.group.WORLD)
    if mesh.ndim not in (1, 2):
        raise ValueError(
            f"sharding takes a mesh of one axis (shard) or two (replicate, shard); this one has {mesh.ndim}: "
            f"{tuple(mesh.shape)}. Pass the axes that are data parallel: mesh['replicate', 'shard']"
        )
    if mesh.get_coordinate() is None:
        raise ValueError(f"rank {dist.get_rank()} is not in the mesh {mesh}")
    if mesh.ndim == 1:
        return ShardGroups(mesh.get_group(0), None, mesh)
    return ShardGroups(mesh.get_group(1), mesh.get_group(0), mesh)


def is_offload(policy: Any) -> bool:
    """Whether the policy, ours or PyTorch's, keeps shards in host memory."""
    return hasattr(policy, "pin_memory")
