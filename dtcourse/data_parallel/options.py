"""What PyTorch's DistributedDataParallel takes, and what it means here: a change of import must not change a meaning.

A keyword that would mean something else here, or nothing, is refused, with what to do instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dtcourse.parameters.replicas import Group

Device = int | str | torch.device

INSTEAD = {
    "check_reduction": "it has had no effect for years; leave it out",
    "delay_all_reduce_named_params": "gradients travel as soon as they are ready; average those of some parameters "
    "yourself by freezing them for this wrapper, or leave it out",
    "param_to_hook_all_reduce": "it goes with delay_all_reduce_named_params, which is not taken; leave it out",
    "mixed_precision": "compute under torch.autocast, and send half the bytes by "
    "register_comm_hook(None, fp16_compress_hook)",
    "skip_all_reduce_unused_params": "freeze parameters that no rank uses before wrapping; where ranks differ, use "
    "static_graph=True or find_unused_parameters=True",
    "bucket_cap_mb_list": "buckets have one size, bucket_cap_mb, the first at most 1 MiB",
    "batched_grad_copy": "each gradient is copied when it is ready; leave it out",
}


def refuse(keywords: dict[str, Any]) -> None:
    """Raises NotImplementedError for what PyTorch takes and we do not, TypeError for what PyTorch does not know either.

    PyTorch's own defaults (None, False) ask for nothing and are taken.
    """
    for name, value in keywords.items():
        if name not in INSTEAD:
            raise TypeError(f"DistributedDataParallel takes no keyword {name!r}")
        if value:
            raise NotImplementedError(f"{name}={value!r} is not taken here: {INSTEAD[name]}")


def group_of(process_group: Group, device_mesh: DeviceMesh | None) -> Group:
    """The ranks that share the batch: a group, those of a mesh of one axis, or all."""
    if device_mesh is None:
        return process_group or dist.group.WORLD
    if process_group is not None:
        raise ValueError(
            "process_group and device_mesh both say which ranks share the batch: pass one of them"
        )
    if device_mesh.ndim != 1:
        raise ValueError(
            f"gradients are averaged along one axis, and the mesh has {device_mesh.ndim}: pass the one of data "
            f"parallelism, as in mesh[{(device_mesh.mesh_dim_names or ('data',))[0]!r}]"
        )
    return device_mesh.get_group()


def input_device(
    module: nn.Module, device_ids: Sequence[Device] | None, output_device: Device | None, dim: int
) -> torch.device | None:
    """Where forward moves its inputs to: the one device in device_ids, which must be the module's; None: they stay."""
    if dim != 0:
        raise ValueError(
            f"dim={dim} would say how one process cuts a batch for several devices; here each rank brings its own part "
            "of the batch: leave it out"
        )
    if not device_ids:
        if output_device is not None:
            raise ValueError(
                f"output_device={output_device} goes with device_ids=[{output_device}]"
            )
        return None
    if len(device_ids) > 1:
        raise ValueError(
            f"a rank has one device, and device_ids={list(device_ids)}: start a rank for each device"
        )
    devices = {p.device for p in module.parameters()}
    first = next(iter(devices))
    if len(devices) > 1 or first.type == "cpu":
        raise ValueError(
            f"device_ids={list(device_ids)} is for a module on one GPU, and this one is on "
            f"{', '.join(sorted(map(str, devices)))}: leave it out, and put inputs where the module is"
        )
    for name, given in (("device_ids", device_ids[0]), ("output_device", output_device)):
        wanted = (
            torch.device(first.type, given)
            if isinstance(given, int)
            else torch.device(given or first)
        )
        if wanted != first:
            raise ValueError(
                f"{name} says {wanted}, and the module is on {first}: move the module there first"
            )
    return first
