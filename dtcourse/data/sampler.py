"""Which samples each replica reads: disjoint parts of one order that all replicas agree on.

The order is a permutation drawn from seed + epoch, so every replica computes it alone. Replica r of p takes places
r, r + p, r + 2p, ... of it. So whatever p is, after k samples on each replica exactly the first k * p places have been
read: one number says where the reading stands, and another number of replicas can go on from there.

A number of samples that p does not divide leaves three choices:
    "repeat"   pad with samples from the start of the order: equal numbers, a few samples twice (PyTorch's default)
    "drop"     leave out the last few
    "exact"    every sample once: some replicas get one more (use Join for training; right for evaluation)
The first two give the very indices of torch.utils.data.DistributedSampler.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler

from dtcourse.data.position import Position

PADDING = ("repeat", "drop", "exact")


class DistributedSampler(Position, Sampler[int]):
    """Indices of one replica, in torch.utils.data.DistributedSampler's shape, with a position that can be saved.

    data: a dataset, or the number of its samples.  Raises ValueError for no samples, or fewer than replicas where
    none may be repeated.
    """

    def __init__(
        self, data: Sized | int, num_replicas: int, rank: int, shuffle: bool = True, seed: int = 0,
        padding: str = "repeat",
    ) -> None:  # fmt: skip
        total = data if isinstance(data, int) else len(data)
        super().__init__(total, num_replicas, rank, seed, {"total": total, "shuffle": shuffle})
        if padding not in PADDING:
            raise ValueError(f"padding is one of {', '.join(PADDING)}; got {padding!r}")
        if total < 1:
            raise ValueError("the dataset is empty: there is nothing to sample")
        if padding == "drop" and total < num_replicas:
            raise ValueError(
                f'{total} samples are fewer than {num_replicas} replicas: with padding="drop" nothing is left'
            )
        self.total, self.shuffle, self.padding = total, shuffle, padding

    def order(self) -> torch.Tensor:
        """This epoch's order of all samples, padding included: the same on every replica, whatever their number.

        Padding depends on how many places are left to read, so that resuming elsewhere pads for the new number.
        """
        order = torch.arange(self.total)
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(self.total, generator=generator)
        left = self.total - self.consumed
        rest = left % self.num_replicas
        if rest and self.padding == "drop":
            return order[: self.total - rest]
        if rest and self.padding == "repeat":
            extra = self.num_replicas - rest
            copies = math.ceil(extra / self.total)
            return torch.cat([order, order.repeat(copies)[:extra]])
        return order

    def __iter__(self) -> Iterator[int]:
        """From the saved position to the end of the epoch. The position moves with `advance`, not with reading:
        loaders read ahead.
        """
        return iter(self.order()[self.consumed + self.rank :: self.num_replicas].tolist())

    def __len__(self) -> int:
        """Samples that this replica has still to read in this epoch."""
        return len(self.order()[self.consumed + self.rank :: self.num_replicas])
