"""The ranks of a mesh of groups, which nobody is asked for: as if all were asked."""

from __future__ import annotations

import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.hybrid import HybridConfig
from dtcourse.hybrid.axes import Axes
from dtcourse.hybrid.config import AXES

LAYOUTS = [
    {"dp_replicate": 2, "dp_shard": 2, "cp": 2, "ep": 2},
    {"dp_replicate": 2, "dp_shard": 2, "cp": 2, "ep": 4},
    {"dp_replicate": 2, "cp": 4, "ep": 2},
    {"dp_shard": 2, "cp": 2, "tp": 2, "ep": 2},
    {"dp_replicate": 2, "dp_shard": 2, "pp": 2, "ep": 2},
]
TURNS = [AXES[i:] + AXES[:i] for i in range(len(AXES))]


def asked(groups):
    """Each rank says who it is, along one group after the other."""
    ranks = dist.get_rank()
    for group in reversed(groups):
        everyone = [None] * dist.get_world_size(group)
        dist.all_gather_object(everyone, ranks, group=group)
        ranks = everyone
    return torch.tensor(ranks)


def grids():
    """What differs, by layout and order."""
    wrong = []
    for degrees in LAYOUTS:
        for order in TURNS:
            cut = HybridConfig(**degrees, axes=order)
            axes = Axes(cut.mesh("cpu"), cut)
            copies, ep = axes.folded(cut.ep)
            replicas, shards = axes.group("dp_replicate"), axes.group("dp_shard", "cp")
            for groups in (
                [replicas, copies, ep],
                [replicas, shards],
                [replicas, copies],
                [copies, ep],
                [shards],
            ):
                if not torch.equal(axes.grid(groups), asked(groups)):
                    wrong.append(
                        (degrees, order, [dist.get_process_group_ranks(g) for g in groups])
                    )
    return wrong


def test_a_grid_of_groups_is_what_its_ranks_say():
    for wrong in launch(grids, 8):
        assert wrong == []
