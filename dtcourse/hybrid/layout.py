"""Who holds what: `print(training.layout)`, on any rank.

    pp(2) x dp_replicate(1) x dp_shard(2) x cp(1) x tp(2) = 8
    rank 1: pp 0, dp_replicate 0, dp_shard 0, cp 0, tp 1; part 0 of 2 of the data; 8,288 bytes of 18 parameters
      blocks.0.mlp.up.weight    (64, 16)  here (16, 16)  dim 0 over tp, dim 0 over dp_shard
      blocks.0.mlp.down.weight  (16, 64)  here (8, 32)   dim 1 over tp, dim 0 over dp_shard

Every parameter that this rank has a part of, with its cuts in the order in which they were made.
"""

from __future__ import annotations

from itertools import combinations

import torch.distributed as dist
from torch import nn

from dtcourse.hybrid.axes import DATA, TOKENS, Axes
from dtcourse.parameters.naming import Entry, entries
from dtcourse.parameters.placement import local
from dtcourse.parameters.replicas import Group
from dtcourse.plural import plural


class Layout:
    """This rank's place on the mesh, and where the pieces of its parameters are. It looks when it is printed."""

    def __init__(self, axes: Axes, module: nn.Module) -> None:
        self.axes, self.module = axes, module

    @property
    def place(self) -> dict[str, int]:
        """This rank's number on each axis."""
        return {name: self.axes.rank(name) for name in self.axes.config.axes}

    @property
    def parameter_bytes(self) -> int:
        """What this rank keeps of the parameters."""
        held = [local(entry.parameter) for entry in entries(self.module)]
        return sum(mine.numel() * mine.element_size() for mine in held)

    def cuts(self, entry: Entry) -> str:
        """A parameter's, in words; "whole" where every rank of this stage has all of it."""
        cuts = [cut for cut in entry.placed.cuts if cut.differs]
        return ", ".join(f"dim {cut.dim} over {self.name_of(cut.group)}" for cut in cuts) or "whole"

    def name_of(self, group: Group) -> str:
        """The axes over which a group lies; its ranks where it is only a part of them, as experts' are."""
        ranks = dist.get_process_group_ranks(group)
        for number in (1, 2, 3):
            for names in combinations(TOKENS if number > 1 else self.axes.config.axes, number):
                if self.axes.ranks(*names) == ranks:
                    return " x ".join(names)
        return f"ranks {', '.join(map(str, ranks))}"

    def __str__(self) -> str:
        place = ", ".join(f"{name} {number}" for name, number in self.place.items())
        data = f"part {self.axes.rank(*DATA)} of {self.axes.size(*DATA)} of the data"
        held = entries(self.module)
        rows = [
            (" = ".join(e.names), str((*e.shape,)), str((*local(e.parameter).shape,)), self.cuts(e))
            for e in held
        ]
        name, whole, here = (max((len(row[i]) for row in rows), default=0) for i in range(3))
        return "\n".join(
            [
                self.axes.config.equation,
                f"rank {self.axes.mesh.get_rank()}: {place}; {data}; {self.parameter_bytes:,} bytes of "
                f"{plural(len(held), 'parameter')}",
                *(f"  {n:{name}}  {w:{whole}}  here {h:{here}}  {cuts}" for n, w, h, cuts in rows),
            ]
        )
