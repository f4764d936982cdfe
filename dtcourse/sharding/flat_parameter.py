"""A unit's parameters as one flat tensor, of which each rank keeps one equal part, its shard.

    weight (2, 3)      bias (2,)   padding          3 ranks: 9 elements, 3 each
    w w w w w w        b b         0
    rank 0 | rank 1 |  rank 2      |

The parameters are laid end to end and padded to a multiple of the ranks, so one all-gather brings all of them, straight
into place, and one reduce-scatter takes all their gradients. A rank's shard may begin and end in the middle of a
matrix: it is even to the element, whatever the shapes, and it is no matrix: the model holds a ShardedParameter of one
dimension. What is laid together has one dtype and one requires_grad (a unit that mixes them has several flats).

Source: Zhao et al., PyTorch FSDP (VLDB 2023, arXiv 2304.11277), section 3.2.1; Rajbhandari et al., ZeRO (arXiv
1910.02054), P_os+g+p. A rank holds ceil(n / p) of the n elements, and n + padding of them while the flat is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import torch
from torch import nn

from dtcourse.parameters import cuts, placement
from dtcourse.parameters.partial_gradients import hooks_of
from dtcourse.sharding.gathered_parameters import GatheredParameters, Named
from dtcourse.sharding.sharded_parameter import Place, ShardedParameter

_numbers = count()  # one for each flat


def padded_size(elements: int, ranks: int) -> int:
    """The least multiple of `ranks` that holds `elements`, and not 0: every rank has a part."""
    return -(-max(elements, 1) // ranks) * ranks


def local_range_of(start: int, end: int, rank: int, shard_numel: int) -> tuple[int, int]:
    """What rank `rank` keeps of the elements start..end of a flat in parts of `part`: (from,
    to) within its own part.
    """
    low, high = rank * shard_numel, (rank + 1) * shard_numel
    first, last = max(start, low), min(end, high)
    return (first - low, last - low) if first < last else (0, 0)


class FlatParameter(GatheredParameters):
    """Parameters of one dtype and one requires_grad, cut as one run of elements."""

    @staticmethod
    def kind(parameter: nn.Parameter) -> Any:
        """A part may hold elements of several parameters, so all of it is trained, or none."""
        return parameter.dtype, parameter.requires_grad

    def lay_out(self, named: Sequence[Named]) -> None:
        """End to end, and padded. The whole is all ranks' parts, one after the other."""
        self.places, self.number = [], next(_numbers)
        start = 0
        for name, parameter, holders in named:
            end = start + parameter.numel()
            inside = placement.placement_of(parameter).without(cuts.FULL)
            trains = parameter.requires_grad
            hooks = hooks_of(parameter)
            at = Place(name, parameter.shape, start, end, holders, trains, inside, hooks)
            self.places.append(at)
            start = end
        self.numel = start
        self.unsharded_numel = padded_size(start, self.num_ranks)
        self.shard_numel = self.trained_shard_numel = self.unsharded_numel // self.num_ranks
        self.first_elements = torch.tensor(
            [
                r * self.shard_numel + local_range_of(p.start, p.end, r, self.shard_numel)[0]
                for p in self.places
                for r in range(p.start // self.shard_numel, -(-p.end // self.shard_numel))
                if p.shape.numel()
            ],
            dtype=torch.int64,
            device=self.device,
        )

    def local_range(self, index: int) -> tuple[int, int]:
        """(from, to) within this rank's part; empty is (0, 0)."""
        return local_range_of(
            self.places[index].start, self.places[index].end, self.rank, self.shard_numel
        )

    def matching_views(
        self, index: int, all_shards: torch.Tensor, tensor: torch.Tensor
    ) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """One run of elements."""
        return [(self.in_all_shards(index, all_shards).view(tensor.shape), tensor)]

    def in_all_shards(self, index: int, all_shards: torch.Tensor) -> torch.Tensor:
        """Shape (elements of the parameter,)."""
        return all_shards[self.places[index].start : self.places[index].end]

    def clear_padding(self, gradients: torch.Tensor) -> None:
        """It lies at the end."""
        gradients[self.numel :].fill_(-0.0)

    def make_parameter(self, index: int, run: torch.Tensor) -> nn.Parameter:
        """Shape (n,), where n may be 0."""
        at = self.places[index]
        parameter = ShardedParameter(run, requires_grad=at.trains)
        parameter.place, parameter.unit_name = at, ""
        return parameter

    def cut(self, at: Place) -> cuts.Run:
        """A run of the flat's elements."""
        return cuts.Run(at.start, self.shard_numel, at.shape, self.group, self.number)

    def make_gradient(self, index: int, run: torch.Tensor) -> torch.Tensor:
        """Shape (n,)."""
        parameter = self.sharded[index]
        assert isinstance(parameter, ShardedParameter), "made above"
        return parameter.make_gradient(run)

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        """All that it is."""
        return tensor

    def all_gather_output(self) -> torch.Tensor:
        """The whole itself: what is gathered comes straight into place."""
        return self.allocate_unsharded()

    def copy_out(self, gathered: torch.Tensor) -> None:
        """It lies where it belongs."""
