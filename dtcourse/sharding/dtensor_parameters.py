"""A unit's parameters, of each of which every rank keeps some rows: a DTensor, cut on dim 0.

    weight (5, 2)     bias (5,)       2 ranks: 3 rows each, the last one of rank 1 padding

    rank 0   w00 w01 w10 w11 w20 w21   b0 b1 b2       part: what goes into the all-gather
    rank 1   w30 w31 w40 w41  -   -    b3 b4  -

Rows of a matrix are a matrix, so what this rank keeps is a tensor of the parameter's own kind, and a DTensor says what
it is a part of: optimizers, norms, clipping and state dicts ask it and are right. The price: each parameter is padded
to a multiple of the ranks, and gathered parts come rank by rank, so each parameter's rows must be copied together after
the all-gather, and apart before the reduce-scatter. Trained parameters come first in the part, so frozen ones go into
the same all-gather, and their gradients do not go into the reduce-scatter.

Source: PyTorch's torch.distributed.fsdp.fully_shard ("FSDP2"; Liang et al., TorchTitan, arXiv 2410.06511).
Of a parameter with d rows a rank holds ceil(d / p), the padding among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from dtcourse.parameters import cuts, placement
from dtcourse.parameters.partial_gradients import hooks_of
from dtcourse.sharding.gathered_parameters import GatheredParameters, Named
from dtcourse.sharding.inner_axes import in_torchs_words, whole_mesh
from dtcourse.sharding.sharded_parameter import Place
from dtcourse.torch_private import address_of, dtensor_like, set_local, version_of


class Rows(NamedTuple):
    """How one parameter is cut.

    start:  the element at which it begins in each rank's part
    length: elements of its rows in each rank's part, padding included
    held:   rows that this rank has
    """

    start: int
    length: int
    held: int


class DTensorParameters(GatheredParameters):
    """Parameters of one dtype, each cut by its rows."""

    @staticmethod
    def kind(parameter: nn.Parameter) -> Any:
        """One message has one dtype."""
        return parameter.dtype

    def lay_out(self, named: Sequence[Named]) -> None:
        """The whole has the parameters end to end, the parts have their rows, padded."""
        inside = {
            name: placement.placement_of(parameter).without(cuts.FULL)
            for name, parameter, _ in named
        }
        self.mesh, self.inner_axes = whole_mesh(self.shard_groups, inside, self.device.type)
        self.places, self.rows = [], []
        in_whole = in_part = self.trained_shard_numel = 0
        for name, parameter, holders in sorted(named, key=lambda item: not item[1].requires_grad):
            if parameter.dim() == 0:
                raise ValueError(
                    f"{name} is a scalar, and has no rows to cut: make it a tensor of shape (1,)"
                )
            shape = getattr(parameter, "sharded_shape", parameter.shape)
            end, trains = in_whole + shape.numel(), parameter.requires_grad
            hooks = hooks_of(parameter)
            at = Place(name, shape, in_whole, end, holders, trains, inside[name], hooks)
            self.places.append(at)
            each = -(-shape[0] // self.num_ranks)  # rows for a rank
            held = min(max(shape[0] - self.rank * each, 0), each)
            self.rows.append(Rows(in_part, each * shape[1:].numel(), held))
            in_whole, in_part = end, in_part + self.rows[-1].length
            if trains:
                self.trained_shard_numel = max(in_part, 1)  # no message is empty
        self.unsharded_numel, self.shard_numel = in_whole, max(in_part, 1)
        self.first_elements = torch.tensor(
            [
                rank * self.trained_shard_numel + rows.start  # padding, where a rank has no row
                for rows, place in zip(self.rows, self.places, strict=True)
                for rank in range(self.num_ranks)
                if place.trains and rows.length
            ],
            dtype=torch.int64,
            device=self.device,
        )

    def local_range(self, index: int) -> tuple[int, int]:
        """Padding included: where this rank has no row, it says whether a gradient came to others."""
        return self.rows[index].start, self.rows[index].start + self.rows[index].length

    def version(self) -> int:
        """A change through a DTensor counts there, one of this rank's rows alone counts in them."""
        with torch.no_grad():
            return sum(version_of(p) + version_of(self.local(p)) for p in self.sharded)

    def matching_views(
        self, index: int, all_shards: torch.Tensor, tensor: torch.Tensor
    ) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """The ranks that have all their rows, then the one that has fewer."""
        start, length, _ = self.rows[index]
        full, rest = divmod(tensor.numel(), max(length, 1))
        by_rank, flat = all_shards.view(self.num_ranks, -1), tensor.reshape(-1)
        pairs = []
        if full:
            rows = flat[: full * length].view(full, length)
            pairs.append((by_rank[:full, start : start + length], rows))
        if rest:
            pairs.append((by_rank[full, start : start + rest], flat[full * length :]))
        return pairs

    def in_all_shards(self, index: int, all_shards: torch.Tensor) -> torch.Tensor:
        """Shape (ranks, length)."""
        start, length, _ = self.rows[index]
        return all_shards.view(self.num_ranks, -1)[:, start : start + length]

    def clear_padding(self, gradients: torch.Tensor) -> None:
        """It lies at the end of each parameter's rows on the last ranks that have fewer, or none."""
        for index, place in enumerate(self.places):
            length = self.rows[index].length
            if place.trains and place.shape.numel() < self.num_ranks * length:
                full, rest = divmod(place.shape.numel(), length)
                in_all_shards = self.in_all_shards(index, gradients)
                in_all_shards[full, rest:].fill_(-0.0)
                in_all_shards[full + 1 :].fill_(-0.0)

    def make_parameter(self, index: int, run: torch.Tensor) -> nn.Parameter:
        """A DTensor in the parameter's own shape, as PyTorch's."""
        rows, trains = self._rows_of(index, run), self.places[index].trains
        shape, placements = in_torchs_words(self.places[index], self.shard_groups, self.inner_axes)
        # On meta: of a part on the host, from_local would make a copy on the mesh's device.
        layout = DTensor.from_local(
            rows.to("meta"),
            self.mesh,
            placements,
            shape=shape,
            stride=torch.empty(shape, device="meta").stride(),
        )
        parameter = nn.Parameter(dtensor_like(layout, rows), requires_grad=trains)
        return parameter

    def mark(self) -> None:
        """And that it is one of a unit's, of which shape."""
        super().mark()
        for at, parameter in zip(self.places, self.sharded, strict=True):
            known: Any = parameter
            known.sharded_name, known.sharded_shape = at.name, at.shape

    def cut(self, at: Place) -> cuts.Sliced:
        """Its rows."""
        return cuts.Sliced(0, at.shape[0], self.group, padded=False, technique=cuts.FULL)

    def adopt(self, shard: torch.Tensor, parameters: Sequence[nn.Parameter]) -> None:
        """Their rows are copied into `shard`, and are there from now on."""
        for index, parameter in enumerate(parameters):
            a, b = self.local_range(index)
            rows = self._rows_of(index, shard[a:b])
            rows.copy_(self.local(parameter))
            set_local(parameter, rows)
        self.keep(shard, parameters)

    def has_changed(self) -> bool:
        """Of another kind, or this rank's rows elsewhere: converted to and fro, say, or set to other memory (.data)."""
        shard = self.shard
        if shard.is_meta:
            return True
        with torch.no_grad():
            for p, place, address in zip(self.sharded, self.places, self.addresses, strict=True):
                mine = p.to_local()  # type: ignore[attr-defined]
                if (
                    address_of(mine) != address
                    or p.requires_grad != place.trains
                    or mine.dtype != shard.dtype
                    or mine.device != shard.device
                ):
                    return True
        return False

    def is_of_another_kind(self) -> bool:
        """Converted, without memory or given it, frozen or unfrozen: what a rank without any row sees too."""
        with torch.no_grad():
            return self.shard.is_meta or any(
                p.requires_grad != place.trains
                or p.dtype != self.dtype
                or self.local(p).device != self.shard.device
                for p, place in zip(self.sharded, self.places, strict=True)
            )

    def check_unchanged(self, unit: str) -> None:
        """They may change: changed.py."""

    def make_gradient(self, index: int, run: torch.Tensor) -> torch.Tensor:
        """A DTensor as the parameter is."""
        return dtensor_like(self.sharded[index], self._rows_of(index, run))

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's rows."""
        assert isinstance(tensor, DTensor), "made by the two above"
        return tensor.to_local()

    def _rows_of(self, index: int, run: torch.Tensor) -> torch.Tensor:
        """What this rank has of `run`, without the padding: shape (held, ...)."""
        held, (_, *row) = self.rows[index].held, self.places[index].shape
        return run[: held * prod(row)].view(held, *row)

    def all_gather_output(self) -> torch.Tensor:
        """Memory of its own, for as long as it takes to copy the rows together."""
        return torch.empty(
            self.num_ranks * self.shard_numel, dtype=self.compute_dtype, device=self.device
        )

    def copy_out(self, gathered: torch.Tensor) -> None:
        """Copies each parameter's rows from all ranks together."""
        whole = self.allocate_unsharded()
        for index, place in enumerate(self.places):
            for source, target in self.matching_views(
                index, gathered, whole[place.start : place.end]
            ):
                target.copy_(source)
