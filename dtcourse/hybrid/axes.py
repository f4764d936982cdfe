"""The groups that techniques ask a mesh for: one axis, or several taken as one.

mesh (dp_shard 2, cp 2, tp 2): ranks 0 to 7
group("tp")                 0 1 | 2 3 | 4 5 | 6 7
group("dp_shard", "cp")     0 2 4 6 | 1 3 5 7          four ranks with different tokens
experts over ep = 2         0 2 | 4 6 | 1 3 | 5 7      neighbours among those; the others hold the same experts
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from dtcourse.collectives import mesh_axes
from dtcourse.hybrid.config import HybridConfig
from dtcourse.parameters.replicas import Group

DATA, TOKENS = ("dp_replicate", "dp_shard"), ("dp_replicate", "dp_shard", "cp")


class Axes:
    """A mesh's axes, one by one and folded. All ranks of the mesh ask for the same groups, in the same order."""

    def __init__(self, mesh: DeviceMesh, config: HybridConfig) -> None:
        if not isinstance(mesh, DeviceMesh) or not isinstance(config, HybridConfig):
            given = f"{type(mesh).__name__}, {type(config).__name__}"
            raise ValueError(
                f"parallelize takes a model, a DeviceMesh, a HybridConfig; got a model, {given}"
            )
        config.check_mesh(mesh)
        self.mesh, self.config = mesh, config
        self._made: dict[tuple[int, ...], Group] = {}
        for name in config.axes:
            if (
                self.size(name) > 1
            ):  # the others send nothing, and of one over all ranks torch keeps no name
                mesh_axes.name(mesh.get_group(name), name)

    def size(self, *names: str) -> int:
        """How many ranks differ in these axes alone."""
        return prod(getattr(self.config, name) for name in names)

    def rank(self, *names: str) -> int:
        """This rank's number among them, the mesh's inner axes counting fastest."""
        number = 0
        for name in self._in_order(names):
            number = number * self.size(name) + self.mesh.get_local_rank(name)
        return number

    def ranks(self, *names: str) -> list[int]:
        """Those that differ from this one in these axes alone."""
        here = self.mesh.get_coordinate()
        assert here is not None, "config.mesh has all ranks"
        at = [slice(None) if n in names else here[i] for i, n in enumerate(self.config.axes)]
        return self.mesh.mesh[tuple(at)].flatten().tolist()

    def group(self, *names: str) -> Group:
        """Their group: the mesh's own where one axis alone has several ranks."""
        wide = [name for name in names if self.size(name) > 1]
        if len(wide) < 2:
            return self.mesh.get_group((wide or names)[0])
        return self._group_of(self.ranks(*names), " x ".join(wide))

    def folded(self, parts: int) -> tuple[Group, Group]:
        """dp_shard x cp as two axes: (those that hold the same experts, `parts` neighbours with different ones)."""
        ranks = torch.tensor(self.ranks("dp_shard", "cp")).view(-1, parts)
        row, column = divmod(self.rank("dp_shard", "cp"), parts)
        copies = self._group_of(ranks[:, column].tolist(), "copies of experts")
        return copies, self._group_of(ranks[row].tolist(), "ep")

    def submesh(self, groups: Sequence[Group], names: Sequence[str]) -> DeviceMesh:
        """A mesh of groups whose ranks are a grid, the first one's counting slowest. Nobody is asked: the mesh knows.

        groups: of dp_replicate, of dp_shard x cp, or of one of the two axes into which that is folded
        """
        known: Any = list(groups)
        kind = self.mesh.device_type
        if len(known) == 1:
            return DeviceMesh.from_group(known[0], kind, mesh_dim_names=tuple(names))
        return DeviceMesh.from_group(
            known, kind, mesh=self.grid(known), mesh_dim_names=tuple(names)
        )

    def grid(self, groups: Sequence[Group]) -> torch.Tensor:
        """The ranks on a grid that has these groups as its lines through this rank."""
        # Where each is counted as dp_replicate x (dp_shard x cp). To go along one line and then along another adds up.
        ranks = torch.tensor(self.ranks(*TOKENS)).view(
            [self.size(n) for n in self._in_order(TOKENS)]
        )
        ranks = ranks.movedim(self._in_order(TOKENS).index("dp_replicate"), 0).flatten()
        number = {rank: i for i, rank in enumerate(ranks.tolist())}
        here = number[self.mesh.get_rank()]
        numbers = torch.tensor(here)
        for group in groups:
            line = torch.tensor([number[rank] for rank in dist.get_process_group_ranks(group)])
            numbers = numbers.unsqueeze(-1) + line - here
        return ranks[numbers]

    def _in_order(self, names: Sequence[str]) -> list[str]:
        return [name for name in self.config.axes if name in names]

    def _group_of(self, ranks: list[int], called: str) -> Group:
        """The mesh's own where an axis has just these ranks; else one whose messages are counted as `called`."""
        for name in self.config.axes:
            if self.ranks(name) == ranks:
                return self.mesh.get_group(name)
        if tuple(ranks) not in self._made:
            # Every rank makes one of its own at this moment: only its members take part.
            made = dist.new_group(ranks, use_local_synchronization=True)
            mesh_axes.name(made, called)
            self._made[tuple(ranks)] = made
        return self._made[tuple(ranks)]
