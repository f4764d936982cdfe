"""Who holds what: `print(training.layout)`.

pp(2) x dp_replicate(1) x dp_shard(2) x cp(1) x tp(2) = 8
rank 5: pp 1, dp_replicate 0, dp_shard 0, cp 0, tp 1; reads part 0 of 2 of the data
blocks.2.mlp.up.weight (64, 16): Shard(dim=0) over ranks 4, 5 (tensor parallelism); Shard(dim=0) over ranks 5, 7 ...

Every parameter that this rank has a part of, with its cuts in the order in which they were made.
"""

from __future__ import annotations

from torch import nn

from dtcourse.hybrid.axes import DATA, Axes
from dtcourse.parameters.naming import entries
from dtcourse.parameters.placement import local
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
        """What this rank keeps of the parameters, padding included."""
        held = [local(entry.parameter) for entry in entries(self.module)]
        return sum(mine.numel() * mine.element_size() for mine in held)

    def __str__(self) -> str:
        place = ", ".join(f"{name} {number}" for name, number in self.place.items())
        data = f"reads part {self.axes.rank(*DATA)} of {self.axes.size(*DATA)} of the data"
        held = entries(self.module)
        lines = [
            self.axes.config.equation,
            f"rank {self.axes.mesh.get_rank()}: {place}; {data}; holds {self.parameter_bytes:,} bytes of "
            f"{plural(len(held), 'parameter')}",
        ]
        lines += [f"  {' = '.join(entry.names)} {entry.placed}" for entry in held]
        return "\n".join(lines)
