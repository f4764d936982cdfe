"""What fully_shard's DTensors say where an inner technique has cut the model before: the mesh of all its axes.

    fully_shard over tensor parallelism, 2 x 2 ranks:  a weight cut by rows   (_StridedShard(0), Shard(0))
                                                       by columns             (Shard(0), Shard(1))
                                                       a norm's, by neither   (Shard(0), Replicate())

The axes of full sharding come first, though it was the inner technique that cut first: so rows of rows are torch's
_StridedShard, whose split factor is the number of inner slices. Every parameter is on the same mesh, since torch's norm
of several takes no two. A DTensor is as large as all slices together: with the padding, where an inner technique pads.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

from dtcourse.collectives import decisions
from dtcourse.parameters.cuts import Sliced
from dtcourse.parameters.placement import Placement
from dtcourse.sharding.policies import ShardGroups
from dtcourse.sharding.sharded_parameter import Place
from dtcourse.torch_private import strided_shard


def whole_mesh(
    shard_groups: ShardGroups, inside: Mapping[str, Placement], device_type: str
) -> tuple[DeviceMesh, list[Any]]:
    """The mesh of full sharding's axes and of the inner techniques' groups, and those groups.

    inside: by name, where the pieces of each parameter are before it is sharded. All ranks call it: where there are
            inner axes, who is on them is gathered, a few numbers per rank

    Raises ValueError for slices that several ranks hold, which DTensors have no word for.
    """
    own = [g for g in (shard_groups.replicate, shard_groups.shard) if g is not None]
    covered = [set(dist.get_process_group_ranks(g)) for g in own]
    inner: dict[Any, str] = {}
    for name, placed in inside.items():
        for cut in placed.cuts:
            if isinstance(cut, Sliced) and cut.copies > 1:
                raise ValueError(
                    f"fully_shard: {name} is a slice that {cut.copies} neighbouring ranks hold alike (fewer key-value "
                    "heads than ranks), which a DTensor cannot say, and torch's norms would count it as often. Take "
                    f"FullyShardedDataParallel, or at most {cut.parts} ranks of {cut.technique}"
                )
            ranks = set(dist.get_process_group_ranks(cut.group))
            if cut.differs or not any(ranks <= group for group in covered):
                inner.setdefault(cut.group, cut.technique.partition(" ")[0])
    if not inner:
        mesh = shard_groups.mesh
        if mesh is None:
            mesh = DeviceMesh.from_group(shard_groups.shard, device_type)
        return mesh, []
    groups = [*own, *inner]
    layout = torch.tensor(decisions.grid(groups))
    known = shard_groups.mesh.mesh_dim_names if shard_groups.mesh is not None else None
    names = list(known or ("replicate", "shard")[-len(own) :])
    for technique in inner.values():
        names.append(technique if technique not in names else f"{technique} {len(names)}")
    if layout.unique().numel() != layout.numel():
        raise ValueError(
            f"fully_shard: its ranks and those of {', '.join(inner.values())} parallelism are no axes of one mesh: "
            f"ranks {sorted(layout.flatten().tolist())} would be on it. Take both from one init_device_mesh"
        )
    mesh = DeviceMesh.from_group(groups, device_type, layout, mesh_dim_names=tuple(names))
    return mesh, list(inner)


def in_torchs_words(
    at: Place, shard_groups: ShardGroups, inner_axes: list[Any]
) -> tuple[torch.Size, list[Any]]:
    """The shape of all pieces together, and the placements on the axes of `whole_mesh`."""
    assert at.inside is not None, "lay_out says it"
    shape, by_axis = list(at.shape), dict.fromkeys(inner_axes, Replicate())
    for cut in at.inside.cuts:
        if cut.differs:
            by_axis[cut.group] = cut.placement
            shape[cut.dim] *= cut.parts
    rows_before = prod(cut.parts for cut in at.inside.cuts if cut.differs and cut.dim == 0)
    rows = strided_shard(0, rows_before) if rows_before > 1 else Shard(0)
    copies = [Replicate()] if shard_groups.replicate is not None else []
    return torch.Size(shape), [*copies, rows, *by_axis.values()]
