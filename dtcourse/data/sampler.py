"""Which samples each replica reads: disjoint parts of one order that all replicas agree on.

The order is a permutation drawn from (seed, epoch), so every replica computes it alone. Replica r of p takes places
r, r + p, r + 2p, ... of it. So whatever p is, after k samples on each replica exactly the first k * p places have been
read: one number says where the reading stands, and another number of replicas can go on from there.

A number of samples that p does not divide leaves three choices:
    "repeat"   pad with samples from the start of the order: equal numbers, a few samples twice (PyTorch's default)
    "drop"     leave out the last few
    "exact"    every sample once: some replicas get one more (use Join for training; right for evaluation)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler

PADDING = ("repeat", "drop", "exact")


class DistributedSampler(Sampler[int]):
    """Indices of one replica, in torch.utils.data.DistributedSampler's shape, with a position that can be saved.

    data: a dataset, or the number of its samples.  Raises ValueError for no samples, or fewer than replicas where
    none may be repeated.
    """

    def __init__(
        self, data: Sized | int, num_replicas: int, rank: int, shuffle: bool = True, seed: int = 0,
        padding: str = "repeat",
    ) -> None:  # fmt: skip
        self.total = data if isinstance(data, int) else len(data)
        if num_replicas < 1 or not 0 <= rank < num_replicas:
            raise ValueError(f"rank is 0 to num_replicas - 1; got rank {rank} of {num_replicas}")
        if padding not in PADDING:
            raise ValueError(f"padding is one of {', '.join(PADDING)}; got {padding!r}")
        if self.total < 1:
            raise ValueError("the dataset is empty: there is nothing to sample")
        if padding == "drop" and self.total < num_replicas:
            raise ValueError(
                f'{self.total} samples are fewer than {num_replicas} replicas: with padding="drop" nothing is left'
            )
        self.num_replicas, self.rank = num_replicas, rank
        self.shuffle, self.seed, self.padding = shuffle, seed, padding
        self.epoch = 0
        self.consumed = 0  # places of the order that all replicas together have read

    def set_epoch(self, epoch: int) -> None:
        """Another epoch has another order, and starts at its beginning. Call it before each epoch."""
        if epoch != self.epoch:
            self.consumed = 0
        self.epoch = epoch

    def order(self) -> torch.Tensor:
        """This epoch's order of all samples, padding included: the same on every replica, whatever their number.

        Padding depends on how many places are left to read, so that resuming elsewhere pads for the new number.
        """
        order = torch.arange(self.total)
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
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

    def advance(self, samples: int) -> None:
        """Every replica has used `samples` more."""
        self.consumed = min(self.consumed + samples * self.num_replicas, self.total)

    def state_dict(self) -> dict[str, int]:
        """The position: the same on every replica, and valid for any number of them."""
        return {
            "epoch": self.epoch,
            "consumed": self.consumed,
            "seed": self.seed,
            "total": self.total,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on from there. ValueError where the state belongs to another dataset or another order."""
        for name, mine in (("total", self.total), ("seed", self.seed)):
            if state[name] != mine:
                raise ValueError(
                    f"the saved position has {name} {state[name]}, this sampler has {mine}"
                )
        self.epoch, self.consumed = state["epoch"], state["consumed"]
